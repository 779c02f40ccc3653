//! Plain sends to a real broker, straight and through the proxy in turn: what relaying costs from
//! end to end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::Sends;
use crate::ledger::Ledger;
use crate::proxy::{Proxy, route};
use crate::{Options, closed_loop, load_average, title};

const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_secs(4);
/// More than any broker stores in a slice.
const MOST: usize = 2_000_000;

/// One slice: sends per second, and the median from a send to its answer, us.
type Measured = (f64, f64);

pub(crate) fn plain(options: &Options) {
    let load = load_average();
    let namesrv = options.namesrv.expect("plain needs --namesrv of a real name server");
    let proxy = Proxy::start(namesrv, &options.flush);
    let ways = [route(namesrv), proxy.broker];
    title("plain", &load);
    for window in &options.windows {
        for way in ways {
            let _warm = measure(way, options, *window);
        }
        let mut taken = [const { Vec::new() }; 2];
        let before = proxy.usage();
        for _ in 0..ROUNDS {
            for (way, taken) in ways.iter().zip(&mut taken) {
                taken.push(measure(*way, options, *window));
            }
        }
        let used = proxy.usage().since(&before);
        let sends: f64 = taken[1].iter().map(|measured| measured.0 * SLICE.as_secs_f64()).sum();
        let [direct, relayed] = taken.map(medians);
        println!(
            "{} connections x {window} in flight: direct {:.0}/s, p50 {:.0} us; \
             through the proxy {:.0}/s, p50 {:.0} us; {:.3} of direct",
            options.connections,
            direct.0,
            direct.1,
            relayed.0,
            relayed.1,
            relayed.0 / direct.0
        );
        used.report(sends as usize);
    }
}

fn measure(broker: SocketAddr, options: &Options, window: usize) -> Measured {
    let ledger = Ledger::new(MOST);
    let start = Instant::now();
    let done = closed_loop(broker, options, &ledger, window, Sends::plain, |id| {
        (id < MOST && start.elapsed() < SLICE).then_some(0)
    });
    let rate = done as f64 / start.elapsed().as_secs_f64();
    (rate, ledger.median_answer_us())
}

fn medians(mut measured: Vec<Measured>) -> Measured {
    let middle = measured.len() / 2;
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rate = measured[middle].0;
    measured.sort_by(|a, b| a.1.total_cmp(&b.1));
    (rate, measured[middle].1)
}
