//! The connection of an agent to the store: questions and answers, signs of life, and the way back after an outage of the
//! network.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oarlock_comm::wire::{Broken, Channel, Secret};

use super::error::AgentsError;
use super::message::{self, Node, Reply, Request, View};

/// How long one address may take to answer.
pub(super) const CONNECT: Duration = Duration::from_secs(3);
/// The store answers a look after half a second at most; beyond this the way to it is broken.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// How often the store is asked what there is to know.
const BEAT: Duration = Duration::from_millis(100);
/// Between two attempts to reach it again.
const PAUSE: Duration = Duration::from_millis(200);

/// The connection to the store, used by the agent and by the thread that shows that it lives.
pub(super) struct Link {
    talk: Mutex<Conversation>,
    /// What was heard last: what there is to know, or why nothing more will be heard.
    heard: Mutex<Result<View, AgentsError>>,
    /// Set when the agent goes.
    gone: Mutex<bool>,
    wake: Condvar,
    endpoint: String,
    address: SocketAddr,
    secret: Secret,
    /// Who this node is, also when it comes again.
    node: Node,
    /// How long an answer may take.
    answer: Duration,
    /// How long an outage may last.
    patience: Duration,
    report: fn(&str),
}

struct Conversation {
    channel: Channel,
    /// Since when, and why, there is no answer.
    out: Option<(Instant, Broken)>,
    /// The store has given this node up meanwhile: its round is over, whatever it hears until it is ready again.
    given_up: Option<String>,
}

/// Why a question has no answer.
enum NoAnswer {
    /// Not now; the store may be reached again.
    Out,
    /// For good.
    Lost(AgentsError),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request and its reply.
pub(super) fn converse(
    channel: &mut Channel,
    request: &Request,
    within: Duration,
    go_on: &dyn Fn() -> bool,
) -> Result<Reply, Broken> {
    channel.send(&message::write(request))?;
    let bytes = channel.receive(Instant::now() + within, go_on)?;
    message::read(&bytes).ok_or(Broken::Garbage("it said something that makes no sense"))
}

impl Link {
    /// The link of a node that the store has welcomed.
    pub(super) fn new(
        channel: Channel,
        (endpoint, address): (String, SocketAddr),
        secret: Secret,
        node: Node,
        (answer, patience): (Duration, Duration),
        report: fn(&str),
    ) -> Link {
        Link {
            talk: Mutex::new(Conversation { channel, out: None, given_up: None }),
            heard: Mutex::new(Ok(View::Waiting { here: 0 })),
            gone: Mutex::new(false),
            wake: Condvar::new(),
            endpoint,
            address,
            secret,
            node,
            answer,
            patience,
            report,
        }
    }

    /// Where the store is.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What was heard last, at once.
    pub(super) fn heard(&self) -> Result<View, AgentsError> {
        locked(&self.heard).clone()
    }

    /// One request and its reply; `None` where `stop` ended an outage.
    pub(super) fn ask(
        &self,
        request: &Request,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<View>, AgentsError> {
        loop {
            match self.try_ask(request) {
                Ok(view) => return Ok(Some(view)),
                Err(NoAnswer::Lost(error)) => return Err(error),
                Err(NoAnswer::Out) if stop() => return Ok(None),
                Err(NoAnswer::Out) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Asks now and then, so that the store hears this node and this node hears what there is to know.
    pub(super) fn beat(&self, every: Duration) {
        let mut gone = locked(&self.gone);
        while !*gone {
            gone = self.wake.wait_timeout(gone, every.min(BEAT)).unwrap_or_else(PoisonError::into_inner).0;
            if *gone {
                return;
            }
            drop(gone);
            if let Err(NoAnswer::Lost(_)) = self.try_ask(&Request::Look { wait_ms: 0 }) {
                return;
            }
            gone = locked(&self.gone);
        }
    }

    /// Says that the agent goes. If the message is lost, the end of the connection has the same effect.
    pub(super) fn leave(&self) {
        let _ = locked(&self.talk).channel.send(&message::write(&Request::Leave));
    }

    /// Ends the thread of the beat.
    pub(super) fn end(&self) {
        *locked(&self.gone) = true;
        self.wake.notify_all();
    }

    fn goes_on(&self) -> bool {
        !*locked(&self.gone)
    }

    fn try_ask(&self, request: &Request) -> Result<View, NoAnswer> {
        let mut talk = locked(&self.talk);
        // What is final stays so, and the connection may have ended since.
        match &*locked(&self.heard) {
            Ok(view @ (View::Aborted { .. } | View::AllDone)) => return Ok(view.clone()),
            Err(error) => return Err(NoAnswer::Lost(error.clone())),
            Ok(_) => {}
        }
        let answer = match &talk.out {
            None => self.put(&mut talk, request),
            Some(_) => self.come_again(&mut talk).and_then(|()| self.put(&mut talk, request)),
        };
        if let Ok(view) = &answer {
            locked(&self.heard).clone_from(&Ok(view.clone()));
        } else if let Err(NoAnswer::Lost(error)) = &answer {
            *locked(&self.heard) = Err(error.clone());
        }
        answer
    }

    fn lost(&self, cause: impl Into<String>) -> NoAnswer {
        NoAnswer::Lost(AgentsError::StoreLost { endpoint: self.endpoint.clone(), cause: cause.into() })
    }

    /// Puts a question over a connection that is there.
    fn put(&self, talk: &mut Conversation, request: &Request) -> Result<View, NoAnswer> {
        let began = Instant::now();
        let view = match converse(&mut talk.channel, request, self.answer, &|| self.goes_on()) {
            Ok(Reply::View(view)) => view,
            Ok(_) => return Err(self.lost("it answered out of turn")),
            Err(broken @ (Broken::Silent | Broken::Closed(_))) => {
                if broken == Broken::Silent {
                    (self.report)(&format!(
                        "the agent at {} has not answered for {} s; ranks go on as far as they can, and it is asked again for {} s",
                        self.endpoint,
                        self.answer.as_secs(),
                        self.patience.as_secs()
                    ));
                }
                talk.out = Some((began, broken));
                return Err(NoAnswer::Out);
            }
            Err(broken) => return Err(self.lost(broken.to_string())),
        };
        if let Request::Ready { .. } = request {
            talk.given_up = None;
        }
        Ok(match (&talk.given_up, view) {
            (Some(reason), View::Waiting { .. } | View::Works { .. } | View::Restart { .. }) => {
                View::Restart { reason: reason.clone() }
            }
            (_, view) => view,
        })
    }

    /// One attempt to reach the store again after an outage. The old connection stays until there is a new one: its end would
    /// tell the store that this node is gone.
    fn come_again(&self, talk: &mut Conversation) -> Result<(), NoAnswer> {
        let Some((since, broken)) = talk.out.clone() else { return Ok(()) };
        let seconds = since.elapsed().as_secs();
        let out = || {
            match since.elapsed() < self.patience {
            true => Err(NoAnswer::Out),
            false => Err(self.lost(format!(
                "{broken}, nor on another connection for {seconds} s (OARLOCK_LINK_TIMEOUT allows longer outages)"
            ))),
        }
        };
        let stream = match TcpStream::connect_timeout(&self.address, CONNECT) {
            Ok(stream) => stream,
            // Its machine is there, and it is not: nobody keeps the list any more.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Err(self.lost(broken.to_string())),
            Err(_) => return out(),
        };
        let mut channel = match Channel::open(stream, &self.secret) {
            Ok(channel) => channel,
            Err(Broken::WrongSecret) => return Err(self.lost("another run has its address")),
            Err(Broken::Garbage(what)) => return Err(self.lost(what)),
            Err(_) => return out(),
        };
        let hello = Request::Hello(self.node.clone());
        match converse(&mut channel, &hello, self.answer, &|| self.goes_on()) {
            Ok(Reply::WelcomeBack) => {}
            Ok(Reply::Welcome) => {
                talk.given_up = Some(format!("this node was not reached for {seconds} s and was given up"));
            }
            Ok(Reply::Refused(reason)) => return Err(NoAnswer::Lost(AgentsError::Ended { reason })),
            Ok(_) => return Err(self.lost("it answered out of turn")),
            Err(_) => return out(),
        }
        (self.report)(&format!("the agent at {} answers again after {seconds} s", self.endpoint));
        (talk.channel, talk.out) = (channel, None);
        Ok(())
    }
}
