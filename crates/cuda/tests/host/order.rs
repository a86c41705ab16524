//! The order of streams and events. The fake driver runs everything as late as it may.

use oarlock_cuda::driver::{Arg, Context, DeviceMemory, Event, Function, Stream};
use oarlock_cuda::{Element, geometry, table};

use super::{Machine, arg, bytes_of, download, elements, fresh, upload};

const N: usize = 100;

/// A kernel that adds `alpha x` to `y`.
fn axpy(machine: &Machine, context: &Context) -> std::sync::Arc<Function> {
    let kernel = table::find("axpy").expect("axpy");
    let instance = kernel.instance(&[Element::F32, Element::F32], None).expect("an instance");
    machine.modules(context).function(&instance).expect("a function")
}

fn add(stream: &Stream, function: &Function, alpha: f32, x: &DeviceMemory, y: &DeviceMemory) {
    let args = [Arg::f32(alpha), arg::<f32>(x), arg::<f32>(y), Arg::u64(N as u64)];
    // SAFETY: both have N elements.
    unsafe { stream.launch(function, geometry::elements(N), &args) }.expect("a launch");
}

/// Copies on one stream, computes on a second one and copies back on the third, with the events of these numbers.
fn pipeline(machine: &Machine, events: [bool; 2]) -> Vec<f32> {
    let context = machine.context(0);
    let streams = [(); 3].map(|()| context.stream().expect("a stream"));
    let function = axpy(machine, &context);
    let mut host = context.alloc_pinned(N * 4).expect("memory");
    host.write(|bytes| bytes.copy_from_slice(bytes_of(&[2f32; N]))).expect("a write");
    let (x, y) = (upload(&streams[0], &[0f32; N]), upload(&streams[0], &[1f32; N]));
    streams[0].copy_to_device(&host, 0, x.all()).expect("a copy");
    if events[0] {
        streams[1].wait(&streams[0].mark().expect("an event")).expect("a wait");
    }
    add(&streams[1], &function, 3.0, &x, &y);
    if events[1] {
        streams[2].wait(&streams[1].mark().expect("an event")).expect("a wait");
    }
    let mut back = context.alloc_pinned(N * 4).expect("memory");
    streams[2].copy_to_host(y.all(), &mut back, 0).expect("a copy");
    back.read(elements::<f32>).expect("a read")
}

#[test]
fn events_order_streams_and_a_missing_one_is_seen() {
    let Some(machine) = Machine::new() else { return };
    assert_eq!(pipeline(&machine, [true, true]), [7.0; N]);
    // The planted mistakes: the kernel before the copy, and the copy before the kernel.
    assert_eq!(pipeline(&machine, [false, true]), [1.0; N]);
    assert_eq!(pipeline(&machine, [true, false]), [1.0; N]);
}

#[test]
fn the_latest_stream_runs_first_when_nothing_orders_them() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let (first, second) = (context.stream().expect("a stream"), context.stream().expect("a stream"));
    let memory = context.alloc(4).expect("memory");
    first.fill(memory.all(), 1).expect("a fill");
    second.fill(memory.all(), 2).expect("a fill");
    context.synchronize().expect("the end of all work");
    assert_eq!(download::<u8>(&first, &memory), [1; 4]);
}

#[test]
fn a_stream_keeps_its_order_after_its_end() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let memory = context.alloc(4).expect("memory");
    let stream = context.stream().expect("a stream");
    stream.fill(memory.all(), 1).expect("a fill");
    stream.fill_words(memory.all(), 0x0203_0405).expect("a fill");
    let event = stream.mark().expect("an event");
    drop(stream);
    let other = context.stream().expect("a stream");
    other.wait(&event).expect("a wait");
    drop(event);
    assert_eq!(download::<u32>(&other, &memory), [0x0203_0405]);
}

#[test]
fn events_say_whether_and_when_their_work_is_done() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = fresh::<u8>(&stream, 1000);
    let (start, end) = (context.timing_event().expect("an event"), context.timing_event().expect("an event"));
    assert!(end.is_done().expect("an answer"), "an event that was never recorded marks nothing");
    stream.wait(&end).expect("a wait");
    start.record(&stream).expect("a record");
    stream.fill(memory.all(), 1).expect("a fill");
    end.record(&stream).expect("a record");
    assert!(!end.is_done().expect("an answer"));
    assert!(end.milliseconds_since(&start).is_err(), "not done yet");
    let polled = (0..10).any(|_| end.is_done().expect("an answer"));
    assert!(polled, "the device works while somebody asks");
    assert!(end.milliseconds_since(&start).expect("a time") >= 0.0);
    // An event can be recorded again, and a wait that was called before means the first time.
    start.record(&stream).expect("a record");
    start.synchronize().expect("the end of its work");
    let untimed: Event = context.event().expect("an event");
    untimed.record(&stream).expect("a record");
    untimed.synchronize().expect("the end of its work");
    assert!(untimed.milliseconds_since(&start).is_err(), "an event without a time");
}

#[test]
fn pinned_memory_waits_for_its_copies() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = context.alloc(8).expect("memory");
    let mut host = context.alloc_pinned(8).expect("memory");
    assert_eq!(host.read(<[u8]>::to_vec).expect("a read"), [0; 8]);
    for round in 1..40u8 {
        host.write(|bytes| bytes.fill(round)).expect("a write");
        stream.copy_to_device(&host, 0, memory.all()).expect("a copy");
        // The next write comes after the copy has read what this one wrote.
    }
    stream.copy_to_host(memory.slice(0..4).expect("a part"), &mut host, 4).expect("a copy");
    host.write(|bytes| bytes[7] = 1).expect("a write");
    assert_eq!(host.read(<[u8]>::to_vec).expect("a read"), [39, 39, 39, 39, 39, 39, 39, 1]);
    // Without any wait in between, many copies are remembered, and the end of the memory waits for them.
    for _ in 0..40 {
        stream.copy_to_device(&host, 0, memory.all()).expect("a copy");
    }
    drop(host);
    assert_eq!(download::<u8>(&stream, &memory), [39, 39, 39, 39, 39, 39, 39, 1]);
}
