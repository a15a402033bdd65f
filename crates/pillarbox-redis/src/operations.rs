//! The operations that callers ask for together: one script call each.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Delivery, Nonce, Outgoing, Receipt, Receive, Settle};

use crate::failure::Failure;
use crate::format::{self, IdText, micros};
use crate::hub::Hub;
use crate::lane::{Caller, Lane, Operation};
use crate::scripts;

/// Storing messages.
#[derive(Debug)]
pub(crate) struct Sends;

/// The messages of one caller.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) max_size: Option<u64>,
}

impl Operation for Sends {
    type Request = Sending;
    /// Of each message, whether there was room.
    type Answer = Vec<bool>;
    const LETTER: char = 's';

    fn lane(hub: &Hub) -> &Lane<Self> {
        &hub.sends
    }

    fn size(request: &Sending) -> (usize, usize) {
        let bytes = request.messages.iter().map(|message| message.body.len()).sum();
        (request.messages.len(), bytes)
    }

    fn joins(one: &Sending, other: &Sending) -> bool {
        one.max_size == other.max_size
    }

    async fn call(
        hub: &Arc<Hub>,
        caller: &Caller,
        requests: &[Sending],
    ) -> Result<Vec<Vec<bool>>, Failure> {
        hub.list().await?;
        let max_size = requests[0].max_size.map_or(String::new(), |max| max.to_string());
        let reply = hub.run(&scripts::SEND, caller, |command| {
            command.arg(&max_size);
            for message in requests.iter().flat_map(|request| &request.messages) {
                command.arg(IdText::new(message.id).as_bytes());
                command.arg(format::head(message)).arg(&message.body[..]);
            }
        });
        let entries = requests.iter().map(|request| request.messages.len());
        let answers = reply.await?.characters(entries.clone().sum())?;
        Ok(share(&answers, entries, |answer| answer != b'F'))
    }
}

/// Delivering messages.
#[derive(Debug)]
pub(crate) struct Receives;

/// What a receive found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Messages.
    Claim(Claim),
    /// Nothing, until so long from now perhaps.
    Nothing { due: Option<Duration> },
}

impl Operation for Receives {
    type Request = Receive;
    type Answer = Found;
    const LETTER: char = 'r';

    fn lane(hub: &Hub) -> &Lane<Self> {
        &hub.receives
    }

    fn size(request: &Receive) -> (usize, usize) {
        (request.max, 0)
    }

    fn joins(_: &Receive, _: &Receive) -> bool {
        true
    }

    async fn call(
        hub: &Arc<Hub>,
        caller: &Caller,
        requests: &[Receive],
    ) -> Result<Vec<Found>, Failure> {
        let wanted = requests.iter().map(|request| request.max).sum();
        let nonces: Vec<_> = (0..wanted).map(|_| Nonce::random()).collect();
        let secrets: String = nonces.iter().map(Nonce::to_string).collect();
        let reply = hub.run(&scripts::RECEIVE, caller, |command| {
            command.arg(&secrets);
            for request in requests {
                command.arg(request.max).arg(micros(request.visibility));
            }
        });
        let mut words = reply.await?.words();
        let due = match words.integer()? {
            ..0 => None,
            wait => Some(Duration::from_micros(wait as u64)),
        };
        let mut claims: Vec<_> = requests.iter().map(|_| Claim::new(hub)).collect();
        let mut place = 0;
        let mut nonces = nonces.into_iter();
        while !words.is_empty() {
            let id = words.bytes()?;
            let count = words.integer()?;
            let data = words.bytes_or_nothing()?;
            let nonce = nonces.next().ok_or_else(|| words.wrong())?;
            while claims.get(place).is_some_and(|claim| claim.len() == requests[place].max) {
                place += 1;
            }
            let (Some(claim), Some(id)) = (claims.get_mut(place), IdText::parse(&id)) else {
                return Err(words.wrong());
            };
            let Some(data) = data else { continue };
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let message = format::message(id, data, count).map_err(|what| words.bad(what))?;
            claim.deliveries.push(Delivery::new(message, Receipt::new(id, nonce)));
        }
        let found = |claim: Claim| match claim.len() {
            0 => Found::Nothing { due },
            _ => Found::Claim(claim),
        };
        Ok(claims.into_iter().map(found).collect())
    }
}

/// Deliveries on their way to a receiver, which go back to the queue if it is not there any more.
#[derive(Debug)]
pub(crate) struct Claim {
    hub: Arc<Hub>,
    deliveries: Vec<Delivery>,
}

impl Claim {
    fn new(hub: &Arc<Hub>) -> Self {
        Self { hub: hub.clone(), deliveries: Vec::new() }
    }

    fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// Hands over the deliveries.
    pub(crate) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            self.hub.clone().release(std::mem::take(&mut self.deliveries));
        }
    }
}

/// Ending and extending leases.
#[derive(Debug)]
pub(crate) struct Settles;

impl Operation for Settles {
    type Request = Vec<Settle>;
    /// Of each delivery, whether its receipt was good.
    type Answer = Vec<bool>;
    const LETTER: char = 'x';

    fn lane(hub: &Hub) -> &Lane<Self> {
        &hub.settles
    }

    fn size(request: &Vec<Settle>) -> (usize, usize) {
        (request.len(), 0)
    }

    fn joins(_: &Vec<Settle>, _: &Vec<Settle>) -> bool {
        true
    }

    async fn call(
        hub: &Arc<Hub>,
        caller: &Caller,
        requests: &[Vec<Settle>],
    ) -> Result<Vec<Vec<bool>>, Failure> {
        let reply = hub.run(&scripts::SETTLE, caller, |command| {
            for settle in requests.iter().flatten() {
                match settle.receipt.token() {
                    Some((id, nonce)) => {
                        command.arg(IdText::new(id).as_bytes());
                        command.arg(format::token(nonce, settle.action));
                    }
                    // A receipt of another backend: nothing has an id like that.
                    None => {
                        command.arg("").arg("");
                    }
                }
            }
        });
        let entries = requests.iter().map(Vec::len);
        let answers = reply.await?.characters(entries.clone().sum())?;
        Ok(share(&answers, entries, |answer| answer == b'1'))
    }
}

/// Deleting all messages.
#[derive(Debug)]
pub(crate) struct Purges;

impl Operation for Purges {
    type Request = ();
    /// How many there were.
    type Answer = u64;
    const LETTER: char = 'p';

    fn lane(hub: &Hub) -> &Lane<Self> {
        &hub.purges
    }

    fn size((): &()) -> (usize, usize) {
        (1, 0)
    }

    fn joins((): &(), (): &()) -> bool {
        false
    }

    async fn call(hub: &Arc<Hub>, caller: &Caller, _: &[()]) -> Result<Vec<u64>, Failure> {
        let reply = hub.run(&scripts::PURGE, caller, |_| ()).await?;
        Ok(vec![reply.words().count()?])
    }
}

/// Cuts one answer per entry into those of each request.
fn share(
    answers: &[u8],
    entries: impl Iterator<Item = usize>,
    good: impl Fn(u8) -> bool,
) -> Vec<Vec<bool>> {
    let mut answers = answers.iter().map(|answer| good(*answer));
    entries.map(|entries| answers.by_ref().take(entries).collect()).collect()
}
