//! Which TCP connections a process has, as the kernel knows them.

use std::collections::HashSet;
use std::fs;

/// An established IPv4 connection, by its two ports: everything here is on loopback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) local: u16,
    pub(crate) remote: u16,
}

const ESTABLISHED: &str = "01";

/// All that the process has open now.
pub(crate) fn of_process(pid: u32) -> Vec<Socket> {
    let own: HashSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process lives")
        .filter_map(|entry| {
            let target = fs::read_link(entry.ok()?.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's table of connections");
    table.lines().skip(1).filter_map(|line| established(line, &own)).collect()
}

fn established(line: &str, own: &HashSet<String>) -> Option<Socket> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, ..] = fields.as_slice() else { return None };
    let inode = *fields.get(9)?;
    (*state == ESTABLISHED && own.contains(inode))
        .then_some(Socket { local: port(local)?, remote: port(remote)? })
}

/// `0100007F:1F90` is port 8080 of 127.0.0.1.
fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.rsplit(':').next()?, 16).ok()
}
