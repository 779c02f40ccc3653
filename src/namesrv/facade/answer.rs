//! What comes back for one name-server request: our own ports in route answers, one outcome for
//! writes that every name server must have, a refusal for what only brokers may say, and the name
//! server's own bytes for everything else. While no name server answers, routes are those last known.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::namesrv::endpoints::Endpoints;
use crate::namesrv::routes::LastRoutes;
use crate::remoting::code::request::{
    ADD_WRITE_PERM_OF_BROKER, DELETE_KV_CONFIG, DELETE_TOPIC_IN_NAMESRV, GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC, GET_SYSTEM_TOPIC_LIST_FROM_NS, PUT_KV_CONFIG, QUERY_DATA_VERSION,
    REGISTER_BROKER, UNREGISTER_BROKER, UPDATE_NAMESRV_CONFIG, WIPE_WRITE_PERM_OF_BROKER,
};
use crate::remoting::code::response::{
    REQUEST_CODE_NOT_SUPPORTED, SUCCESS, SYSTEM_ERROR, TOPIC_NOT_EXIST,
};
use crate::remoting::command::Command;
use crate::remoting::frame::Frame;
use crate::remoting::header::Header;
use crate::remoting::route::{broker_addresses, cluster_body, rewrite};
use crate::upstream::UpstreamError;
use crate::upstream::client::{Answer, Request};
use crate::upstream::cluster::Cluster;
use crate::upstream::nameservers::NameServers;

/// During an outage, how long the name servers have before the last known route is served: a client
/// waits 3 s and a silent name server takes all of them.
const OUTAGE_WAIT: Duration = Duration::from_millis(500);
/// The first release whose name server quotes ids, for clients of that release: the ordinal of 4.9.4
/// [protocol: MQVersion].
const STANDARD_JSON: i32 = 401;

/// See the module.
pub(super) struct Answering {
    pub(super) nameservers: NameServers,
    pub(super) cluster: Cluster,
    pub(super) endpoints: Endpoints,
    pub(super) routes: LastRoutes,
}

/// An error's code and remark.
type Refusal = (i32, String);

impl Answering {
    /// The answer's bytes, or nothing where none is due: one-way requests, answers, and requests
    /// that the name server does not answer either.
    pub(super) async fn answer(&self, frame: Frame, header: Header) -> Option<Bytes> {
        let asked =
            Command { serialize: frame.serialize(), header: header.clone(), body: Bytes::new() };
        if asked.is_response() {
            return None;
        }
        let code = header.code;
        let outcome = if matches!(code, REGISTER_BROKER | UNREGISTER_BROKER | QUERY_DATA_VERSION) {
            Err(refused(code))
        } else {
            let request = Request::Frame { frame, header };
            if asked.is_oneway() {
                if let Err(err) = self.nameservers.notify(request).await {
                    tracing::debug!(%err, code, "one-way request lost");
                }
                return None;
            }
            self.outcome(&asked, request).await
        };
        match outcome {
            Ok(bytes) => bytes,
            Err(_) if asked.is_oneway() => None,
            Err((code, remark)) => Some(asked.reply(code, Some(&remark)).encode()),
        }
    }

    async fn outcome(&self, asked: &Command, request: Request) -> Result<Option<Bytes>, Refusal> {
        match asked.header.code {
            PUT_KV_CONFIG
            | DELETE_KV_CONFIG
            | WIPE_WRITE_PERM_OF_BROKER
            | DELETE_TOPIC_IN_NAMESRV
            | UPDATE_NAMESRV_CONFIG
            | ADD_WRITE_PERM_OF_BROKER => self.write(&request).await,
            GET_ROUTEINFO_BY_TOPIC | GET_BROKER_CLUSTER_INFO => self.route(asked, request).await,
            GET_SYSTEM_TOPIC_LIST_FROM_NS => match self.nameservers.ask(request).await {
                Ok(answer) if answer.header.code == SUCCESS => self.rewritten(&answer).await,
                answer => self.as_it_came(answer),
            },
            _ => self.as_it_came(self.nameservers.ask(request).await),
        }
    }

    /// Routes, or the addresses of the cluster: from a name server, or as last known.
    async fn route(&self, asked: &Command, request: Request) -> Result<Option<Bytes>, Refusal> {
        let mut asking = pin!(self.nameservers.ask(request));
        let known_down = self.routes.is_outage() && !*self.cluster.answered().borrow();
        let answer = if known_down {
            match timeout(OUTAGE_WAIT, &mut asking).await {
                Ok(answer) => answer,
                Err(_) => match self.last_known(asked).await? {
                    Some(last) => return Ok(Some(last)),
                    None => asking.await,
                },
            }
        } else {
            asking.await
        };
        match answer {
            Ok(answer) => {
                self.routes.answered();
                self.note(asked, &answer);
                if answer.header.code != SUCCESS {
                    return relayed(&answer);
                }
                self.prepare(&answer).await?;
                self.rewritten(&answer).await
            }
            Err(err) => match self.last_known(asked).await? {
                Some(last) => Ok(Some(last)),
                None => Err(self.unanswered(&err)),
            },
        }
    }

    /// Remembers what a name server said about a topic.
    fn note(&self, asked: &Command, answer: &Answer) {
        let Some(topic) = topic(asked) else { return };
        match answer.header.code {
            // A body that cannot be read is answered with that, when it is rewritten.
            SUCCESS => drop(self.routes.learn(topic, &answer.frame.body(), is_standard(asked))),
            TOPIC_NOT_EXIST => self.routes.unknown(topic),
            _ => {}
        }
    }

    /// The answer from what is known, if anything is.
    async fn last_known(&self, asked: &Command) -> Result<Option<Bytes>, Refusal> {
        let body = if asked.header.code == GET_BROKER_CLUSTER_INFO {
            let brokers = self.cluster.watch().borrow().clone();
            (!brokers.is_empty()).then(|| cluster_body(&brokers).into())
        } else {
            topic(asked).and_then(|topic| self.routes.last(topic, is_standard(asked)))
        };
        let Some(body) = body else { return Ok(None) };
        // The table knows better than an old route where its brokers are: it learns nothing here.
        let brokers = broker_addresses(&body).map_err(unreadable)?;
        let ensured = self.endpoints.ensure(brokers.keys()).await;
        ensured.map_err(|err| (SYSTEM_ERROR, ours(&err.to_string())))?;
        let mut answer = asked.reply(SUCCESS, None);
        answer.body = rewrite(&body, &self.endpoints).map_err(unreadable)?.into();
        self.routes.served();
        Ok(Some(answer.encode()))
    }

    fn as_it_came(&self, answer: Result<Answer, UpstreamError>) -> Result<Option<Bytes>, Refusal> {
        match answer {
            Ok(answer) => relayed(&answer),
            // A name server leaves unknown codes unanswered; so do we.
            Err(UpstreamError::Timeout { .. }) => Ok(None),
            Err(err) => Err(self.unanswered(&err)),
        }
    }

    /// Makes sure that every broker in a route has its ports, and tells the cluster table.
    async fn prepare(&self, answer: &Answer) -> Result<(), Refusal> {
        let brokers = broker_addresses(&answer.frame.body()).map_err(unreadable)?;
        self.cluster.learn(&brokers);
        let ensured = self.endpoints.ensure(brokers.keys()).await;
        ensured.map_err(|err| (SYSTEM_ERROR, ours(&err.to_string())))
    }

    async fn rewritten(&self, answer: &Answer) -> Result<Option<Bytes>, Refusal> {
        let body = answer.frame.body();
        if body.is_empty() {
            return relayed(answer);
        }
        let body = match rewrite(&body, &self.endpoints) {
            Ok(body) => body,
            Err(_) => {
                // An address that came without its broker: the table knows who it is, if anyone.
                self.cluster.refresh().await;
                let brokers = self.cluster.watch().borrow().clone();
                let ensured = self.endpoints.ensure(brokers.keys()).await;
                ensured.map_err(|err| (SYSTEM_ERROR, ours(&err.to_string())))?;
                rewrite(&body, &self.endpoints).map_err(unreadable)?
            }
        };
        fitting(answer.to_bytes(Some(&body)))
    }

    /// 0 only if every name server said 0; else the first failure, with its address.
    async fn write(&self, request: &Request) -> Result<Option<Bytes>, Refusal> {
        let mut first = None;
        for (address, outcome) in self.nameservers.ask_all(request).await {
            match outcome {
                Ok(answer) if answer.header.code == SUCCESS => {
                    first.get_or_insert(answer);
                }
                Ok(answer) => {
                    let remark = answer.header.remark.unwrap_or_default();
                    let remark = String::from_utf8_lossy(&remark);
                    let remark = ours(&format!("name server {address} refused: {remark}"));
                    return Err((answer.header.code, remark));
                }
                Err(err) => {
                    let remark = ours(&format!("name server {address} failed: {err}"));
                    return Err((SYSTEM_ERROR, remark));
                }
            }
        }
        match first {
            Some(answer) => relayed(&answer),
            None => Err((SYSTEM_ERROR, ours("no name server"))),
        }
    }

    fn unanswered(&self, err: &UpstreamError) -> Refusal {
        let all = self.nameservers.describe();
        (SYSTEM_ERROR, ours(&format!("no name server answered: {err}; asked: {all}")))
    }
}

/// The topic that a route is asked for.
fn topic(asked: &Command) -> Option<&str> {
    if asked.header.code != GET_ROUTEINFO_BY_TOPIC {
        return None;
    }
    asked.header.ext.get("topic").and_then(|topic| std::str::from_utf8(topic).ok())
}

/// Whether the client is answered with quoted ids, by a name server that knows how to.
fn is_standard(asked: &Command) -> bool {
    let flag = asked.header.ext.get("acceptStandardJsonOnly");
    asked.header.version >= STANDARD_JSON
        || flag.is_some_and(|flag| flag.eq_ignore_ascii_case(b"true"))
}

fn relayed(answer: &Answer) -> Result<Option<Bytes>, Refusal> {
    fitting(answer.to_bytes(None))
}

fn fitting(bytes: Option<Bytes>) -> Result<Option<Bytes>, Refusal> {
    let too_large = || (SYSTEM_ERROR, ours("the answer does not fit into a frame"));
    bytes.ok_or_else(too_large).map(Some)
}

fn refused(code: i32) -> Refusal {
    let remark = format!(
        "code {code} is for brokers, which must be given the real name servers as namesrvAddr"
    );
    (REQUEST_CODE_NOT_SUPPORTED, ours(&remark))
}

fn unreadable(err: impl std::fmt::Display) -> Refusal {
    (SYSTEM_ERROR, ours(&format!("cannot rewrite the route: {err}")))
}

/// A remark that says who speaks.
fn ours(remark: &str) -> String {
    format!("rocketmq-timer-proxy: {remark}")
}
