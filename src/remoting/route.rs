//! Broker addresses in name-server answers: found and replaced, with every other byte kept.
//!
//! Covers the bodies of GET_ROUTEINFO_BY_TOPIC (105), GET_BROKER_CLUSTER_INFO (106) and
//! GET_SYSTEM_TOPIC_LIST_FROM_NS (304). Keys come quoted or not, by the request's version; since
//! only address strings are replaced, the answer keeps the form the client asked for: no blank is
//! added (Go cuts `brokerAddrs` at commas and colons) and members of later releases survive.
//!
//! Called by the name-server facade and by whoever looks up where a broker is. Never decides who
//! stands for a broker; that is [`Ours`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::json::{JsonError, Reader, Text, write_string};

/// Which broker a listener stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerId {
    /// Cluster name.
    pub cluster: String,
    /// Broker name: the identity of its queues.
    pub name: String,
    /// 0 is the master.
    pub id: i64,
}

/// An answer that does not have the shape its code promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unreadable route body: {0}")]
pub struct RouteError(pub String);

impl From<JsonError> for RouteError {
    fn from(error: JsonError) -> Self {
        Self(error.to_string())
    }
}

/// Every broker address in a 105 or 106 body.
pub fn broker_addresses(body: &[u8]) -> Result<BTreeMap<BrokerId, String>, RouteError> {
    let mut addresses = BTreeMap::new();
    each_place(body, &mut |place| {
        if let Place::Broker(broker, address) = place {
            addresses.insert(broker, utf8(&address)?);
        }
        Ok(())
    })?;
    Ok(addresses)
}

/// The body with every real address replaced by what `ours` says: the values of `brokerAddrs`
/// (105, 106), the keys of `filterServerTable` (105) and `brokerAddr` (304). Addresses that stand
/// for a broker are looked up by its id, the others by the address itself. An address that `ours`
/// does not know is an error: a real address is never handed out.
pub fn rewrite(body: &[u8], ours: &dyn Ours) -> Result<Vec<u8>, RouteError> {
    let mut replacements = Vec::new();
    each_place(body, &mut |place| {
        let (address, replacement) = match place {
            Place::Broker(broker, address) => {
                let replacement = ours.by_id(&broker);
                (address, replacement)
            }
            Place::Address(address) => {
                let replacement = ours.by_address(&utf8(&address)?);
                (address, replacement)
            }
        };
        match replacement {
            Some(replacement) => replacements.push((address.span(), written(&replacement))),
            None => return Err(RouteError(format!("nobody stands for {}", utf8(&address)?))),
        }
        Ok(())
    })?;
    Ok(splice(body, replacements))
}

/// `body` with each of `replacements` in place of what stood there.
fn splice(body: &[u8], mut replacements: Vec<(Range<usize>, Vec<u8>)>) -> Vec<u8> {
    // In a broker's object the addresses may stand after other places: order is the body's.
    replacements.sort_by_key(|(span, _)| span.start);
    let mut out = Vec::with_capacity(body.len() + 16 * replacements.len());
    let mut copied = 0;
    for (span, replacement) in replacements {
        out.extend_from_slice(body.get(copied..span.start).unwrap_or_default());
        out.extend_from_slice(&replacement);
        copied = span.end;
    }
    out.extend_from_slice(body.get(copied..).unwrap_or_default());
    out
}

/// `text` as a JSON string.
fn written(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(text.as_bytes(), &mut out);
    out
}

/// Who stands for a real broker on our side.
pub trait Ours {
    /// `host:port` of the listener for this broker.
    fn by_id(&self, broker: &BrokerId) -> Option<String>;
    /// `host:port` of the listener for this real address.
    fn by_address(&self, address: &str) -> Option<String>;
}

// === broker ids as keys ===

/// Whether the ids in `brokerAddrs` of a 105 body are quoted; `None` where there is none.
pub fn ids_are_quoted(body: &[u8]) -> Result<Option<bool>, RouteError> {
    let mut first = None;
    each_id(body, &mut |id| {
        first.get_or_insert(id.quote().is_some());
        Ok(())
    })?;
    Ok(first)
}

/// A 105 body with the ids in `brokerAddrs` quoted, or not: a body that was answered to one client
/// in the form that another asks for.
pub fn with_ids_quoted(body: &[u8], quoted: bool) -> Result<Vec<u8>, RouteError> {
    let mut replacements = Vec::new();
    each_id(body, &mut |id| {
        if id.quote().is_some() != quoted {
            let number = utf8(&id)?;
            // Only numbers mean the same without quotes.
            let plain = number.parse::<i64>().is_ok();
            let plain = plain.then(|| number.clone().into_bytes());
            let bare = plain.ok_or_else(|| RouteError("a broker id is no number".to_owned()))?;
            replacements.push((id.span(), if quoted { written(&number) } else { bare }));
        }
        Ok(())
    })?;
    Ok(splice(body, replacements))
}

fn each_id<'a>(
    body: &'a [u8],
    found: &mut dyn FnMut(Text<'a>) -> Result<(), RouteError>,
) -> Result<(), RouteError> {
    let mut broker = |reader: &mut Reader<'a>| {
        fields(reader, &mut |reader, key| match key {
            b"brokerAddrs" if reader.null() => Ok(()),
            b"brokerAddrs" => reader.object(|reader, id| {
                found(id)?;
                Ok(reader.skip()?)
            }),
            _ => Ok(reader.skip()?),
        })
    };
    members(body, &mut |reader, key| match key {
        b"brokerDatas" => values(reader, &mut broker),
        _ => Ok(reader.skip()?),
    })
}

/// A 106 body with these brokers, in the form of a 4.x name server: compact, ids without quotes.
pub fn cluster_body(brokers: &BTreeMap<BrokerId, String>) -> Vec<u8> {
    let mut tables = BTreeMap::<&str, (&str, Vec<u8>)>::new();
    let mut clusters = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (broker, address) in brokers {
        clusters.entry(&broker.cluster).or_default().insert(&broker.name);
        let (_, addresses) = tables.entry(&broker.name).or_insert((&broker.cluster, Vec::new()));
        if !addresses.is_empty() {
            addresses.push(b',');
        }
        addresses.extend_from_slice(format!("{}:", broker.id).as_bytes());
        addresses.extend_from_slice(&written(address));
    }
    let tables = tables.into_iter().map(|(name, (cluster, addresses))| {
        let (name, cluster) = (written(name), written(cluster));
        let parts: [&[u8]; 8] = [
            &name,
            br#":{"brokerAddrs":{"#,
            &addresses,
            br#"},"brokerName":"#,
            &name,
            br#","cluster":"#,
            &cluster,
            b"}",
        ];
        parts.concat()
    });
    let clusters = clusters.into_iter().map(|(cluster, names)| {
        let names: Vec<_> = names.into_iter().map(written).collect();
        [&written(cluster), &b":["[..], &names.join(&b','), b"]"].concat()
    });
    let (tables, clusters): (Vec<_>, Vec<_>) = (tables.collect(), clusters.collect());
    let parts: [&[u8]; 5] = [
        br#"{"brokerAddrTable":{"#,
        &tables.join(&b','),
        br#"},"clusterAddrTable":{"#,
        &clusters.join(&b','),
        b"}}",
    ];
    parts.concat()
}

/// One entry of `queueDatas`: what a topic looks like on one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueData {
    /// Broker name.
    pub broker: String,
    /// Queues for writing.
    pub write_queues: i32,
    /// Permission bits: 4 read, 2 write.
    pub perm: i32,
}

/// The queues of a topic, from a 105 body.
pub fn queues(body: &[u8]) -> Result<Vec<QueueData>, RouteError> {
    let mut queues = Vec::new();
    members(body, &mut |reader, key| match key {
        b"queueDatas" => values(reader, &mut |reader| {
            queues.push(queue_data(reader)?);
            Ok(())
        }),
        _ => Ok(reader.skip()?),
    })?;
    Ok(queues)
}

fn queue_data(reader: &mut Reader<'_>) -> Result<QueueData, RouteError> {
    let mut broker = None;
    let (mut write_queues, mut perm) = (0, 0);
    fields(reader, &mut |reader, key| {
        match key {
            b"brokerName" => broker = text(reader)?,
            b"writeQueueNums" => write_queues = number(reader)?,
            b"perm" => perm = number(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(QueueData {
        broker: broker.ok_or_else(|| RouteError("a queue without brokerName".to_owned()))?,
        write_queues,
        perm,
    })
}

// === where addresses stand ===

/// An address in a body, where it stands.
enum Place<'a> {
    /// A value of `brokerAddrs`.
    Broker(BrokerId, Text<'a>),
    /// `brokerAddr`, or a key of `filterServerTable`.
    Address(Text<'a>),
}

/// Calls `found` for every address of a 105, 106 or 304 body.
fn each_place<'a>(
    body: &'a [u8],
    found: &mut dyn FnMut(Place<'a>) -> Result<(), RouteError>,
) -> Result<(), RouteError> {
    members(body, &mut |reader, key| match key {
        b"brokerDatas" => values(reader, &mut |reader| broker_data(reader, found)),
        b"brokerAddrTable" => fields(reader, &mut |reader, _| broker_data(reader, found)),
        b"filterServerTable" if reader.null() => Ok(()),
        b"filterServerTable" => reader.object(|reader, broker| {
            found(Place::Address(broker))?;
            Ok(reader.skip()?)
        }),
        b"brokerAddr" => match reader.text()? {
            Some(address) => found(Place::Address(address)),
            None => Ok(()),
        },
        _ => Ok(reader.skip()?),
    })
}

/// Reads one `{"brokerAddrs":{id:"host:port"},"brokerName":..,"cluster":..}`; the addresses come
/// first, whose they are is said after them.
fn broker_data<'a>(
    reader: &mut Reader<'a>,
    found: &mut dyn FnMut(Place<'a>) -> Result<(), RouteError>,
) -> Result<(), RouteError> {
    let mut addresses = Vec::new();
    let (mut name, mut cluster) = (None, None);
    fields(reader, &mut |reader, key| {
        match key {
            b"brokerAddrs" => fields(reader, &mut |reader, id| {
                let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
                let id = id.ok_or_else(|| RouteError("a broker id is no number".to_owned()))?;
                let address = reader.text()?;
                let address = address.ok_or_else(|| RouteError("an address is null".to_owned()))?;
                addresses.push((id, address));
                Ok(())
            })?,
            b"brokerName" => name = text(reader)?,
            b"cluster" => cluster = text(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    let name = name.ok_or_else(|| RouteError("a broker without brokerName".to_owned()))?;
    let cluster = cluster.unwrap_or_default();
    for (id, address) in addresses {
        let broker = BrokerId { cluster: cluster.clone(), name: name.clone(), id };
        found(Place::Broker(broker, address))?;
    }
    Ok(())
}

// === reading ===

type Member<'m, 'a> = &'m mut dyn FnMut(&mut Reader<'a>, &[u8]) -> Result<(), RouteError>;

/// Hands each member of the body to `member`, which reads or skips the value.
fn members<'a>(body: &'a [u8], member: Member<'_, 'a>) -> Result<(), RouteError> {
    let mut reader = Reader::new(body);
    reader.object(|reader, key| member(reader, &key.bytes()?))?;
    Ok(reader.end()?)
}

/// Hands each member of the next object to `member`; null counts as an empty one.
fn fields<'a>(reader: &mut Reader<'a>, member: Member<'_, 'a>) -> Result<(), RouteError> {
    if reader.null() {
        return Ok(());
    }
    reader.object(|reader, key| member(reader, &key.bytes()?))
}

/// Calls `item` for each value of the next array; null counts as an empty one.
fn values<'a>(
    reader: &mut Reader<'a>,
    item: &mut dyn FnMut(&mut Reader<'a>) -> Result<(), RouteError>,
) -> Result<(), RouteError> {
    if reader.null() {
        return Ok(());
    }
    reader.array(|reader| item(reader))
}

fn text(reader: &mut Reader<'_>) -> Result<Option<String>, RouteError> {
    reader.text()?.map(|text| utf8(&text)).transpose()
}

fn utf8(text: &Text<'_>) -> Result<String, RouteError> {
    String::from_utf8(text.bytes()?.into_owned())
        .map_err(|_| RouteError(format!("no UTF-8 at byte {}", text.span().start)))
}

fn number(reader: &mut Reader<'_>) -> Result<i32, RouteError> {
    let text = text(reader)?.unwrap_or_default();
    text.parse().map_err(|_| RouteError(format!("{text:?} is no number")))
}

#[cfg(test)]
mod tests;
