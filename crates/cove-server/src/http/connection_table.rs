//! The open connections, in two groups of the same size: those that have shown a valid token, and those that have not.
//!
//! The accept loop enters every connection without a token. If that group is full, the table closes the oldest
//! connection of the peer that has most of them, so clients without a token only push out each other. Each of them has
//! a moment to show its token before it can be pushed out; meanwhile new ones wait in the kernel's queue. The moment
//! begins when its task first reads: a request that waited in the queue is then read at once, however busy the server
//! is. It is short, so that thousands of attempts leave the queue in a fraction of a second. The request check moves a
//! connection to the other group when it shows a valid token. If that group is full, a principal with fewer connections
//! than another takes the place that the other used least recently; otherwise its request is refused. A connection that
//! the table closes leaves it at once, and its task sees `closed` and drops the socket.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::token::{AcceptedToken, TokenSet};
use cove_core::fair_room::least_recent_of_largest;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// All open connections.
pub(super) struct ConnectionTable {
    /// Most connections in each group.
    most: usize,
    /// How long a connection without a token cannot be pushed out.
    grace: Duration,
    entries: Mutex<TableEntries>,
}

#[derive(Default)]
struct TableEntries {
    open: HashMap<u64, OpenConnection>,
    /// Counts entries and uses, which gives them an order.
    clock: u64,
}

struct OpenConnection {
    peer: IpAddr,
    /// The token of its last request.
    token: Option<AcceptedToken>,
    /// Of its last request with a token, or of its begin.
    last_used: u64,
    /// When its task began to read.
    read_since: Option<Instant>,
    closed: CancellationToken,
}

/// The place of one connection. Dropping it gives the place back.
pub(super) struct ConnectionPlace {
    id: u64,
    table: Arc<ConnectionTable>,
    /// Cancelled when the table closes the connection.
    pub(super) closed: CancellationToken,
}

impl ConnectionTable {
    pub(super) fn new(most: usize, grace: Duration) -> Self {
        Self { most, grace, entries: Mutex::default() }
    }

    /// Returns true if a connection can enter without pushing out one that had no time to show its token.
    pub(super) fn has_room(&self) -> bool {
        let entries = lock(&self.entries);
        let mut waiting = 0;
        let mut is_old = false;
        for open in entries.open.values().filter(|open| open.token.is_none()) {
            waiting += 1;
            is_old |= open.read_since.is_some_and(|since| since.elapsed() >= self.grace);
        }
        waiting < self.most || is_old
    }

    /// Enters a connection that has shown no token. Also returns whether another was closed for it.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> (ConnectionPlace, bool) {
        let closed = CancellationToken::new();
        let mut entries = lock(&self.entries);
        let waiting: Vec<(u64, IpAddr, u64)> = {
            let unknown = entries.open.iter().filter(|(_, open)| open.token.is_none());
            unknown.map(|(id, open)| (*id, open.peer, open.last_used)).collect()
        };
        let full = waiting.len() >= self.most;
        let victim = full.then(|| least_recent_of_largest(waiting.into_iter())).flatten();
        victim.iter().for_each(|(id, _)| entries.close(*id));
        let id = entries.tick();
        let open = OpenConnection {
            peer: peer_group(peer),
            token: None,
            last_used: id,
            read_since: None,
            closed: closed.clone(),
        };
        entries.open.insert(id, open);
        drop(entries);
        (ConnectionPlace { id, table: Arc::clone(self), closed }, victim.is_some())
    }

    /// Closes every connection whose last token is no longer accepted. Returns their number.
    pub(super) fn close_revoked(&self, accepted: &TokenSet) -> usize {
        let mut entries = lock(&self.entries);
        let revoked: Vec<u64> = {
            let is_revoked = |open: &OpenConnection| open.token.as_ref().is_some_and(|token| !accepted.has(token));
            entries.open.iter().filter(|(_, open)| is_revoked(open)).map(|(id, _)| *id).collect()
        };
        for id in &revoked {
            entries.close(*id);
        }
        revoked.len()
    }
}

impl TableEntries {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn close(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id) {
            open.closed.cancel();
        }
    }
}

impl ConnectionPlace {
    /// Notes that the connection's task begins to read.
    pub(super) fn begin_reading(&self) {
        if let Some(own) = lock(&self.table.entries).open.get_mut(&self.id) {
            own.read_since = Some(Instant::now());
        }
    }

    /// Notes a valid token. Fails if its principal has no place for another connection.
    pub(super) fn show_token(&self, token: &AcceptedToken) -> Result<(), NoPlaceError> {
        let mut entries = lock(&self.table.entries);
        let now = entries.tick();
        let Some(own) = entries.open.get_mut(&self.id) else { return Err(NoPlaceError) };
        own.last_used = now;
        if own.token.replace(token.clone()).is_some() {
            return Ok(());
        }
        let known: Vec<(u64, Principal, u64)> = {
            let holders = entries.open.iter().filter_map(|(id, open)| Some((id, open.token.as_ref()?, open.last_used)));
            let others = holders.filter(|(id, ..)| **id != self.id);
            others.map(|(id, token, last_used)| (*id, token.principal.clone(), last_used)).collect()
        };
        if known.len() < self.table.most {
            return Ok(());
        }
        let own_count = known.iter().filter(|(_, principal, _)| *principal == token.principal).count();
        match least_recent_of_largest(known.into_iter()) {
            // After the exchange the other principal still has at least as many as this one.
            Some((victim, count)) if count > own_count + 1 => {
                entries.close(victim);
                Ok(())
            }
            _ => {
                if let Some(own) = entries.open.get_mut(&self.id) {
                    own.token = None;
                }
                Err(NoPlaceError)
            }
        }
    }
}

/// All places of connections with a token are taken.
#[derive(Debug)]
pub(super) struct NoPlaceError;

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        lock(&self.table.entries).open.remove(&self.id);
    }
}

/// Returns what counts as one peer: an address, or the 64 bits of a network of version 6, of which one machine may use
/// every address.
fn peer_group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: [u8; 4] = [127, 0, 0, 1];

    fn table(most: usize) -> Arc<ConnectionTable> {
        Arc::new(ConnectionTable::new(most, Duration::ZERO))
    }

    fn token(name: &str) -> AcceptedToken {
        AcceptedToken::for_test(name)
    }

    #[test]
    fn the_peer_with_most_connections_loses_its_oldest() {
        let table = table(4);
        let honest = table.enter([10, 0, 0, 1].into()).0;
        let flood: Vec<ConnectionPlace> = (0..10).map(|_| table.enter(LOCAL.into()).0).collect();
        assert!(!honest.closed.is_cancelled());
        let closed: Vec<bool> = flood.iter().map(|place| place.closed.is_cancelled()).collect();
        assert_eq!(closed, [vec![true; 7], vec![false; 3]].concat());
        // A network of version 6 is one peer.
        let table = self::table(2);
        let first = table.enter("2001:db8::1".parse().unwrap()).0;
        let second = table.enter("2001:db8:0:1::1".parse().unwrap()).0;
        let _third = table.enter("2001:db8::2".parse().unwrap()).0;
        assert!(first.closed.is_cancelled() && !second.closed.is_cancelled());
    }

    #[test]
    fn new_connections_wait_until_one_had_its_moment() {
        let moment = Duration::from_secs(2);
        let table = Arc::new(ConnectionTable::new(1, moment));
        assert!(table.has_room());
        let place = table.enter(LOCAL.into()).0;
        std::thread::sleep(moment);
        // Its task had no time to read yet.
        assert!(!table.has_room());
        place.begin_reading();
        assert!(!table.has_room());
        std::thread::sleep(moment);
        assert!(table.has_room());
        drop(place);
        let place = table.enter(LOCAL.into()).0;
        place.show_token(&token("alice")).unwrap();
        assert!(table.has_room());
    }

    #[test]
    fn connections_with_a_token_are_never_closed_for_others_without() {
        let table = table(2);
        let known: Vec<ConnectionPlace> = (0..2).map(|_| table.enter(LOCAL.into()).0).collect();
        known.iter().for_each(|place| place.show_token(&token("alice")).unwrap());
        let flood: Vec<ConnectionPlace> = (0..100).map(|_| table.enter(LOCAL.into()).0).collect();
        assert!(known.iter().all(|place| !place.closed.is_cancelled()));
        assert!(flood[99].show_token(&token("alice")).is_err());
        // A refused connection still counts as one without a token.
        assert!(!flood[99].closed.is_cancelled() && flood[97].closed.is_cancelled());
        drop(known);
        flood[99].show_token(&token("alice")).unwrap();
    }

    #[test]
    fn a_principal_with_few_connections_takes_a_place_from_one_with_many() {
        let table = table(4);
        let greedy: Vec<ConnectionPlace> = (0..4).map(|_| table.enter(LOCAL.into()).0).collect();
        greedy.iter().for_each(|place| place.show_token(&token("greedy")).unwrap());
        // Its first connection is used again, so the second is the least recent.
        greedy[0].show_token(&token("greedy")).unwrap();
        let modest: Vec<ConnectionPlace> = (0..3).map(|_| table.enter(LOCAL.into()).0).collect();
        modest[0].show_token(&token("modest")).unwrap();
        assert!(greedy[1].closed.is_cancelled() && !greedy[0].closed.is_cancelled());
        modest[1].show_token(&token("modest")).unwrap();
        // Both have half of the places now.
        assert!(modest[2].show_token(&token("modest")).is_err());
    }

    #[test]
    fn connections_of_revoked_tokens_are_closed() {
        let table = table(4);
        let places: Vec<ConnectionPlace> = (0..3).map(|_| table.enter(LOCAL.into()).0).collect();
        places[0].show_token(&token("alice")).unwrap();
        places[1].show_token(&token("bob")).unwrap();
        assert_eq!(table.close_revoked(&TokenSet::for_test(&["bob"])), 1);
        let closed: Vec<bool> = places.iter().map(|place| place.closed.is_cancelled()).collect();
        assert_eq!(closed, [true, false, false]);
    }
}
