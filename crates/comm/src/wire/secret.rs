//! What both ends of a connection prove to know, and the keys that are made of it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What a secret is used for, so that no proof for one use is one for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The launchers of machines meet.
    Agents,
    /// The ranks of machines meet.
    Ranks,
}

/// The secret of a run, with which a process proves that it belongs to it. No output shows it.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // A key of any length is accepted.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

pub(super) fn digest(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    mac(key, parts).finalize().into_bytes().into()
}

impl Secret {
    /// The secret of a run: its token, bound to its name and to what it is used for. Without a token (an empty one) everybody
    /// can make it who knows the name.
    pub fn new(purpose: Purpose, token: &str, run_id: &str) -> Secret {
        let purpose: &[u8] = match purpose {
            Purpose::Agents => b"agents of run ",
            Purpose::Ranks => b"ranks of run ",
        };
        Secret(digest(token.as_bytes(), &[purpose, run_id.as_bytes()]))
    }

    /// The token of a round, in hex: whoever does not know the secret cannot tell it from the nonce, which is no secret.
    pub fn of_round(&self, round: u64, nonce: &str) -> String {
        super::bytes::hex(&digest(&self.0, &[b"round ", &round.to_le_bytes(), nonce.as_bytes()]))
    }

    /// The proof of one side of a connection.
    pub(super) fn proof(&self, side: Side, store: &[u8; 32], agent: &[u8; 32]) -> Hmac<Sha256> {
        let side: &[u8] = match side {
            Side::Store => b"store",
            Side::Agent => b"agent",
        };
        mac(&self.0, &[side, store, agent])
    }

    /// The keys of a connection: of the way to the store and of the way to the agent.
    pub(super) fn keys(&self, store: &[u8; 32], agent: &[u8; 32]) -> LinkKeys {
        let key = |way: &[u8]| digest(&self.0, &[way, store, agent]);
        LinkKeys { to_store: key(b"to store"), to_agent: key(b"to agent") }
    }
}

/// The two sides of a connection: the store listens, the agent connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Store,
    Agent,
}

/// The keys of what follows the frames of a connection, as one end uses them.
pub struct DataKeys {
    /// Of what it sends.
    pub send: [u8; 16],
    /// Of what it receives.
    pub receive: [u8; 16],
}

impl LinkKeys {
    /// Keys of their own for other bytes than frames, as one side uses them.
    pub(super) fn data(&self, side: Side) -> DataKeys {
        let [to_store, to_agent] = [&self.to_store, &self.to_agent].map(|key| {
            let mut short = [0; 16];
            short.copy_from_slice(&digest(key, &[b"data"])[..16]);
            short
        });
        match side {
            Side::Store => DataKeys { send: to_agent, receive: to_store },
            Side::Agent => DataKeys { send: to_store, receive: to_agent },
        }
    }
}

/// The keys of one connection, one for each way. Both sides have the same.
#[derive(Clone)]
pub struct LinkKeys {
    pub(super) to_store: [u8; 32],
    pub(super) to_agent: [u8; 32],
}
