//! Streams, each an order of work, and events, which order the work of different streams.

use std::ffi::c_uint;

use super::api::{Handle, call};
use super::context::{Context, count};
use crate::error::{Error, Result};

const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const NOT_READY: i32 = 600;

/// A stream: what it is given runs in that order, and in no order with what other streams are given.
pub struct Stream {
    context: Context,
    handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread; a handle is only a name.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(context: &Context) -> Result<Stream> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(context.enter()?, stream_create(&mut handle, NON_BLOCKING)) }?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// One whose blocks the GPU runs before those of other streams, whenever one of its multiprocessors is free.
    pub(super) fn first(context: &Context) -> Result<Stream> {
        let api = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { call!(api, stream_priorities(&mut least, &mut greatest)) }?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call. Both priorities are 0 where a GPU knows none.
        unsafe { call!(api, stream_create_with_priority(&mut handle, NON_BLOCKING, greatest)) }?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns when all that the stream was given is done.
    ///
    /// # Errors
    /// What a launch met, or the driver's own, as for all that follow.
    pub fn synchronize(&self) -> Result<()> {
        count(&self.context.counters().waits);
        // SAFETY: the handle is a stream's.
        unsafe { call!(self.context.enter()?, stream_synchronize(self.handle)) }
    }

    /// What the stream is given from now on waits for what the event marks. An event that was never recorded marks nothing.
    /// It may be an event of another GPU's context.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both handles are live; the flags must be 0.
        unsafe { call!(self.context.enter()?, stream_wait(self.handle, event.handle, 0)) }
    }

    /// A new event that marks all that the stream was given so far.
    pub fn mark(&self) -> Result<Event> {
        let event = Event::new(&self.context)?;
        event.record(self)?;
        Ok(event)
    }
}

impl Stream {
    /// The milliseconds that one of `runs` runs of some work takes on the GPU, by events around all of them.
    ///
    /// # Errors
    /// Those of the work, or the driver's own.
    pub fn milliseconds(&self, runs: usize, mut work: impl FnMut() -> Result<()>) -> Result<f32> {
        let (start, end) = (self.context().timing_event()?, self.context().timing_event()?);
        start.record(self)?;
        for _ in 0..runs {
            work()?;
        }
        end.record(self)?;
        end.synchronize()?;
        Ok(end.milliseconds_since(&start)? / runs.max(1) as f32)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is a stream's, and nobody uses it afterward. The driver finishes its work first.
        self.context.end(|api| unsafe {
            (api.stream_destroy.call)(self.handle);
        });
    }
}

/// A mark in a stream.
pub struct Event {
    context: Context,
    handle: Handle,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Context) -> Result<Event> {
        Event::with_flags(context, DISABLE_TIMING)
    }

    pub(super) fn timing(context: &Context) -> Result<Event> {
        Event::with_flags(context, 0)
    }

    fn with_flags(context: &Context, flags: c_uint) -> Result<Event> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(context.enter()?, event_create(&mut handle, flags)) }?;
        Ok(Event { context: context.clone(), handle })
    }

    /// From now on it marks all that the stream was given so far.
    ///
    /// # Errors
    /// [`Error::OtherContext`], or the driver's own, as for all that follow.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.context.expect_same(&self.context, "the event")?;
        // SAFETY: both handles are live and of one context.
        unsafe { call!(self.context.enter()?, event_record(self.handle, stream.handle)) }
    }

    /// Whether what it marks is done.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the handle is an event's.
        match unsafe { call!(self.context.enter()?, event_query(self.handle)) } {
            Ok(()) => Ok(true),
            Err(Error::Driver(error)) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns when what it marks is done.
    pub fn synchronize(&self) -> Result<()> {
        count(&self.context.counters().waits);
        // SAFETY: the handle is an event's.
        unsafe { call!(self.context.enter()?, event_synchronize(self.handle)) }
    }

    /// The milliseconds from an earlier event to this one. Both must know their time, and be done.
    pub fn milliseconds_since(&self, start: &Event) -> Result<f32> {
        self.context.expect_same(&start.context, "the event")?;
        let mut milliseconds = 0.0;
        // SAFETY: both handles are events', and the pointer is valid for the call.
        unsafe { call!(self.context.enter()?, event_elapsed(&mut milliseconds, start.handle, self.handle)) }?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is an event's, and nobody uses it afterward; waits that were called stay in effect.
        self.context.end(|api| unsafe {
            (api.event_destroy.call)(self.handle);
        });
    }
}
