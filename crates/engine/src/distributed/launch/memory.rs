//! Why a process of a rank ended: what its exit and the memory of the machine suggest.

use std::fmt::Write as _;

use oarlock_comm::{Ended, Exit, MachineMemory, killed_for_memory, processor_seconds};

use crate::report::terminal::readable;

/// The memory around the ranks, to which a killed one is held.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    kills_before: Option<u64>,
}

impl Memory {
    /// As it is before the ranks start.
    pub fn now() -> Memory {
        Memory { kills_before: killed_for_memory() }
    }

    /// What is known of a process that SIGKILL ended, which is not ours.
    fn of_killed(&self, end: &Ended) -> String {
        let kills =
            killed_for_memory().zip(self.kills_before).map(|(now, before)| now.saturating_sub(before));
        let mut out = "signal 9, which nobody here sent: ".to_owned();
        out.push_str(&match kills {
            Some(0) => match processor_seconds() {
                Some(seconds) => format!("its {seconds} s of processor time (`ulimit -t`) may be used up"),
                None => {
                    "the kernel killed no process for want of memory meanwhile, so a person or a batch system sent it".to_owned()
                }
            },
            Some(n) => format!("out of memory, for want of which the kernel killed {n} process(es) meanwhile"),
            None => match processor_seconds() {
                Some(seconds) => {
                    format!("its {seconds} s of processor time (`ulimit -t`) are used up, or it is out of memory")
                }
                None => "probably out of memory".to_owned(),
            },
        });
        if let Some(bytes) = end.resident {
            let _ = write!(out, "; the process last held {}", readable(bytes));
        }
        if let Ok(machine) = MachineMemory::current() {
            let _ = match machine.limit.filter(|limit| *limit < machine.total) {
                Some(limit) => write!(out, ", and its control group may hold {}", readable(limit)),
                None => write!(out, ", and the machine has {}", readable(machine.total)),
            };
        }
        out
    }

    /// The likely cause of an end, where there is one.
    pub fn explain(&self, end: &Ended) -> Option<String> {
        if end.asked_to_end {
            return match end.exit {
                Exit::Signal(9) => Some("killed by the launcher: it did not end in time".to_owned()),
                _ => Some("ended by the launcher after the first failure".to_owned()),
            };
        }
        let cause = match end.exit {
            Exit::Signal(9) => return Some(self.of_killed(end)),
            Exit::Signal(4) => "it was built for another processor",
            Exit::Signal(6) => "the program gave up by itself; its last lines say why",
            Exit::Signal(7) => {
                "shared memory is often full (`df /dev/shm`; a container needs --shm-size), or a mapped file was cut"
            }
            Exit::Signal(8) => "a whole number was divided by zero",
            Exit::Signal(11) => {
                "an invalid address: a fault in native code, or a stack that is full (`ulimit -s`)"
            }
            Exit::Signal(13) => "nobody reads its output any longer, as after `head`",
            Exit::Signal(2 | 15) => "a signal to this rank alone asked it to end",
            Exit::Signal(24) => "its limit of processor time (`ulimit -t`) was reached",
            Exit::Signal(25) => "its limit of file size (`ulimit -f`) was reached",
            Exit::Code(126) => "a shell found a program that it may not run",
            Exit::Code(127) => "a shell did not find a program",
            Exit::Code(137) => {
                "a shell saw a program of its own killed by signal 9, often for want of memory"
            }
            Exit::Code(141) => "a shell saw that nobody reads its output any longer, as after `head`",
            Exit::Code(139) => "a shell saw a program of its own end by signal 11, an invalid address",
            _ => return None,
        };
        Some(cause.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn end(exit: Exit, asked_to_end: bool) -> Ended {
        Ended {
            pid: 41,
            exit,
            at: UNIX_EPOCH + Duration::from_secs(86_400),
            resident: Some(3 << 29),
            asked_to_end,
        }
    }

    #[test]
    fn a_killed_rank_is_told_with_the_memory_it_had() {
        let memory = Memory { kills_before: None };
        let said = memory.explain(&end(Exit::Signal(9), false)).unwrap();
        assert!(said.contains("out of memory") && said.contains("held 1611 MB"), "{said}");
        // A count that has not grown speaks against it, and then nothing else is said.
        let counted = killed_for_memory().map(|kills| Memory { kills_before: Some(kills) });
        let said =
            counted.and_then(|memory| memory.explain(&end(Exit::Signal(9), false))).unwrap_or_default();
        assert!(!(said.contains("out of memory") && said.contains("a person")), "{said}");
        assert!(memory.explain(&end(Exit::Signal(9), true)).unwrap().contains("did not end in time"));
        assert!(memory.explain(&end(Exit::Code(127), false)).unwrap().contains("did not find"));
        assert_eq!(memory.explain(&end(Exit::Code(1), false)), None);
    }
}
