//! Where the output of each rank goes: to the streams of this process, into files, or both.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_comm::{RankGroup, StopSignals};
use oarlock_engine::distributed::launch::WorkerEnv;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lines::{LineBuffer, mark, marked};
use super::logs::Attempt;
use super::spec::Output;
use crate::console::eprint;
use crate::error::{Error, Result};

/// How often a reader looks whether the writers have ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How long output is still shown after a signal has ended the run, if it is not read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The output of the ranks of a round.
pub(super) struct Outputs {
    destinations: Vec<[Destination; 2]>,
    readers: Vec<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
    done: (mpsc::Sender<()>, mpsc::Receiver<()>),
}

/// Where one stream of one rank goes.
enum Destination {
    /// To the same stream of this process.
    Inherit,
    /// To a file, or nowhere.
    File(Stdio),
    /// Through a pipe that this process reads.
    Pipe(Sinks),
    /// The rank's process already has it.
    Attached,
}

/// Where what is read goes.
struct Sinks {
    /// As it comes.
    file: Option<(File, String)>,
    /// By lines.
    lines: LineBuffer,
    shown: Option<Shown>,
    filter: Option<Arc<Filter>>,
}

/// A rank's lines on a stream of this process.
struct Shown {
    stream: Arc<Mutex<File>>,
    mark: Vec<u8>,
    /// A line that never ended is ended for it, since others write, too.
    complete: bool,
}

/// The lines of all ranks that hold one of some words, in a file of their own.
pub(super) struct Filter {
    words: Vec<String>,
    file: Mutex<File>,
}

/// One stream of this process, and what is the same for all ranks that use it.
struct Stream {
    /// The name of its files.
    log: &'static str,
    /// Where lines are shown; one that is not open shows nothing.
    shown: Option<Arc<Mutex<File>>>,
    is_terminal: bool,
    filter: Option<Arc<Filter>>,
}

/// What decides where the streams of a rank go.
struct Rules<'a> {
    output: &'a Output,
    role: &'a str,
    attempt: Option<&'a Attempt>,
    /// A training run of this program, which marks its lines where that is needed, and wants to see the terminal.
    own: bool,
    /// More than one rank is shown.
    several: bool,
}

impl Rules<'_> {
    /// A stream of this process, with its filter.
    fn stream(&self, which: usize) -> Result<Stream> {
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let (shown, is_terminal) = match which {
            0 => (stdout.as_fd().try_clone_to_owned(), stdout.is_terminal()),
            _ => (stderr.as_fd().try_clone_to_owned(), stderr.is_terminal()),
        };
        let words = &self.output.filters[which];
        let filter = match self.attempt.filter(|_| !words.is_empty()) {
            Some(attempt) => {
                let name = ["filtered_stdout.log", "filtered_stderr.log"][which];
                Some(Arc::new(Filter::new(words, &attempt.folder.join(name))?))
            }
            None => None,
        };
        Ok(Stream {
            log: ["stdout.log", "stderr.log"][which],
            shown: shown.ok().map(|stream| Arc::new(Mutex::new(File::from(stream)))),
            is_terminal,
            filter,
        })
    }

    /// Where a stream of a rank goes.
    fn destination(
        &self,
        worker: &WorkerEnv,
        stream: &Stream,
        redirect: bool,
        tee: bool,
    ) -> Result<Destination> {
        let rank = worker.local_rank;
        let path = self.attempt.filter(|_| redirect || tee).map(|attempt| attempt.log(rank, stream.log));
        let open = |path: &Path| oarlock_files::begin(path).map_err(Error::io("create", path));
        let show = shows(self.output, rank) && (tee || !redirect);
        let marked = self.output.prefix || tee || (stream.is_terminal && self.several && !self.own);
        // Lines of several programs are kept whole; ours write whole ones.
        let by_line = marked || (self.several && !self.own);
        match (&path, stream.filter.is_some(), show) {
            (Some(path), false, _) if !tee => return Ok(Destination::File(open(path)?.into())),
            (None, false, false) => return Ok(Destination::File(Stdio::null())),
            (None, false, true) if !by_line => return Ok(Destination::Inherit),
            _ => {}
        }
        let file = match path {
            Some(path) => Some((open(&path)?, path.display().to_string())),
            None => None,
        };
        let shown = stream.shown.clone().filter(|_| show).map(|shared| {
            let color = stream.is_terminal && std::env::var_os("NO_COLOR").is_none();
            let mark = match marked {
                true => mark(self.output.mark.as_deref(), self.role, worker, color),
                false => Vec::new(),
            };
            Shown { stream: shared, mark, complete: self.several || marked }
        });
        Ok(Destination::Pipe(Sinks {
            file,
            lines: LineBuffer::default(),
            shown,
            filter: stream.filter.clone(),
        }))
    }
}

fn shows(output: &Output, local_rank: usize) -> bool {
    output.only.as_ref().is_none_or(|only| only.contains(&local_rank))
}

impl Outputs {
    /// Outputs of ranks whose files, if any, belong to an attempt. The output of an Oarlock run is not read
    /// unless somebody asks.
    pub(super) fn new(
        output: &Output,
        role: &str,
        workers: &[WorkerEnv],
        own: bool,
        attempt: Option<&Attempt>,
    ) -> Result<Outputs> {
        let several = workers.iter().filter(|worker| shows(output, worker.local_rank)).count() > 1;
        let rules = Rules { output, role, attempt, own, several };
        let streams = [rules.stream(0)?, rules.stream(1)?];
        let mut destinations = Vec::with_capacity(workers.len());
        for worker in workers {
            let (redirects, tee) = (output.redirects.of(worker.local_rank), output.tee.of(worker.local_rank));
            destinations.push([
                rules.destination(worker, &streams[0], redirects.out, tee.out)?,
                rules.destination(worker, &streams[1], redirects.err, tee.err)?,
            ]);
        }
        Ok(Outputs { destinations, readers: Vec::new(), ended: Arc::default(), done: mpsc::channel() })
    }

    /// Gives a rank's command its streams.
    pub(super) fn attach(&mut self, rank: usize, command: &mut Command) {
        for (stream, destination) in self.destinations[rank].iter_mut().enumerate() {
            let stdio = match destination {
                Destination::Inherit | Destination::Attached => Stdio::inherit(),
                Destination::Pipe(_) => Stdio::piped(),
                Destination::File(_) => match std::mem::replace(destination, Destination::Attached) {
                    Destination::File(stdio) => stdio,
                    _ => Stdio::null(),
                },
            };
            match stream {
                0 => command.stdout(stdio),
                _ => command.stderr(stdio),
            };
        }
    }

    /// Begins to read what the ranks write.
    pub(super) fn read(&mut self, group: &mut RankGroup) -> Result<()> {
        for rank in 0..self.destinations.len() {
            let (out, err) = group.take_output(rank);
            let [stdout, stderr] = std::mem::replace(
                &mut self.destinations[rank],
                [Destination::Attached, Destination::Attached],
            );
            if let (Some(pipe), Destination::Pipe(sinks)) = (out, stdout) {
                self.start(pipe, sinks)?;
            }
            if let (Some(pipe), Destination::Pipe(sinks)) = (err, stderr) {
                self.start(pipe, sinks)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, pipe: impl Read + AsFd + Send + 'static, sinks: Sinks) -> Result<()> {
        let (ended, done) = (self.ended.clone(), self.done.0.clone());
        let read = move || {
            forward(pipe, sinks, &ended);
            // After a signal, no thread waits for it.
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("output".into()).spawn(read);
        self.readers.push(thread.map_err(Error::io("start a thread for", "the output of a rank"))?);
        Ok(())
    }

    /// Shows the rest of what the ranks, which have ended, have written. Where nobody reads it this waits, as any
    /// program would, but not after a signal.
    pub(super) fn finish(self, signals: &StopSignals, stopped: bool) {
        self.ended.store(true, Ordering::Relaxed);
        let mut since = stopped.then(Instant::now);
        let mut left = self.readers.len();
        while left > 0 {
            match self.done.1.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => left -= 1,
                Err(_) if since.is_some_and(|since| since.elapsed() > LAST_WORDS) => return,
                Err(_) if since.is_none() && signals.received().is_some() => since = Some(Instant::now()),
                Err(_) => {}
            }
        }
        for reader in self.readers {
            // It has no result.
            let _ = reader.join();
        }
    }
}

/// Reads until the writers have ended, or all outputs are closed: then the pipe breaks for the writers, as it would without
/// this process.
fn forward(mut pipe: impl Read + AsFd, mut sinks: Sinks, ended: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    // What was in the pipe when all had ended. Something that left its group may keep the pipe and write for ever.
    let mut rest: Option<u64> = None;
    loop {
        if rest.is_none() && ended.load(Ordering::Relaxed) {
            rest = Some(rustix::io::ioctl_fionread(&pipe).unwrap_or(0));
        }
        if rest == Some(0) {
            break;
        }
        if rest.is_none() {
            let mut files = [PollFd::new(&pipe, PollFlags::IN)];
            match poll(&mut files, Some(&LOOK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                _ => {}
            }
        }
        let most =
            rest.map_or(buffer.len(), |rest| buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX)));
        let n = match pipe.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        rest = rest.map(|rest| rest.saturating_sub(n as u64));
        sinks.take(&buffer[..n]);
        if sinks.is_empty() {
            return;
        }
    }
    sinks.end();
}

impl Sinks {
    fn is_empty(&self) -> bool {
        self.shown.is_none() && self.file.is_none() && self.filter.is_none()
    }

    fn take(&mut self, bytes: &[u8]) {
        if let Some((file, name)) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            eprint(&format!("warning: cannot write to {name}: {error}; what follows is not in it\n"));
            self.file = None;
        }
        let lines = self.lines.push(bytes);
        self.show(&lines);
    }

    fn end(&mut self) {
        let mut rest = self.lines.end();
        if !rest.is_empty() && self.shown.as_ref().is_some_and(|shown| shown.complete) {
            rest.push(b'\n');
        }
        self.show(&rest);
    }

    fn show(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if let Some(shown) = &self.shown
            && shown.write(lines).is_err()
        {
            // The reader has closed the stream, as `head` does.
            self.shown = None;
        }
        if let Some(filter) = &self.filter {
            filter.take(lines);
        }
    }
}

impl Shown {
    /// Writes lines, all of them before those of another rank.
    fn write(&self, lines: &[u8]) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        match self.mark.is_empty() {
            true => stream.write_all(lines),
            false => stream.write_all(&marked(&self.mark, lines)),
        }
    }
}

impl Filter {
    fn new(words: &[String], path: &Path) -> Result<Filter> {
        let file = oarlock_files::begin(path).map_err(Error::io("create", path))?;
        Ok(Filter { words: words.to_vec(), file: Mutex::new(file) })
    }

    fn take(&self, lines: &[u8]) {
        let text = String::from_utf8_lossy(lines);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for line in text.lines().filter(|line| self.words.iter().any(|word| line.contains(word))) {
            // A copy; the line itself is where it always is.
            let _: io::Result<()> = writeln!(file, "{line}");
        }
    }
}
