//! Devices, contexts, memory and copies.

use oarlock_cuda::Error;
use oarlock_cuda::blas::Blas;
use oarlock_cuda::driver::{
    Context, Device, DeviceMemory, Driver, Event, Function, MemoryInfo, Module, Pinned, Stream,
};
use oarlock_cuda::modules::Modules;

use super::{Machine, again, download, upload};

#[test]
fn devices_describe_themselves() {
    let Some(machine) = Machine::new() else { return };
    let driver = machine.driver();
    assert_eq!(driver.version().expect("a version"), (13, 1));
    assert_eq!(driver.device_count().expect("a count"), 3);
    let device = driver.device(0).expect("a device");
    assert_eq!(device.name().expect("a name"), "Emulated H100");
    assert_eq!(device.pci_id().expect("a place"), "0000:1b:00.0");
    assert_eq!(device.uuid().expect("a UUID"), "GPU-00285078-a0c8-f018-4068-90b8e0083058");
    assert_eq!(device.capability().expect("a capability"), (9, 0));
    assert_eq!(device.arch().expect("an architecture"), "sm_90a");
    assert_eq!(device.memory_bytes().expect("a size"), 256 << 20);
    assert_eq!(device.multiprocessors().expect("a number"), 132);
    let limits = device.limits().expect("numbers");
    assert_eq!((limits.usual_shared_bytes, limits.shared_bytes), (48 << 10, 227 << 10));
    assert_eq!((limits.threads, limits.registers), (1024, 65536));
    assert_eq!(limits.grid, [i32::MAX as u32, 65535, 65535]);
    assert!(!device.is_slice().expect("an answer"));
    assert_eq!(driver.device(1).expect("a device").arch().expect("an architecture"), "sm_80");
    machine.model(1, "A100 MIG 1g.10gb");
    let slice = driver.device(1).expect("a device");
    assert!(slice.is_slice().expect("an answer"));
    assert!(slice.uuid().expect("a UUID").starts_with("MIG-00295"), "{}", slice.uuid().expect("a UUID"));
    let error = driver.device(3).err().expect("an error");
    assert!(matches!(error, Error::NoDevice { wanted: 3, count: 3 }), "{error}");
    assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
}

#[test]
fn memory_is_counted_and_freed() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let total_bytes = 256 << 20;
    let all = MemoryInfo { free_bytes: total_bytes, total_bytes };
    assert_eq!(context.memory_info().expect("numbers"), all);
    let memory = context.alloc(1000).expect("memory");
    assert_eq!((memory.bytes(), memory.address() % 256), (1000, 0));
    assert!(memory.context().same(&context));
    assert_eq!(context.memory_info().expect("numbers").free_bytes, total_bytes - 1000);
    drop(memory);
    assert_eq!(context.memory_info().expect("numbers"), all);
    match context.alloc(1 << 40) {
        Err(Error::Driver(error)) => {
            assert!(error.is_out_of_memory() && !error.is_sticky(), "{error}");
            assert!(error.to_string().contains("smaller batch"), "{error}");
        }
        _ => panic!("there is no such memory"),
    }
    let none = context.alloc(0).expect("no memory");
    assert_eq!((none.address(), none.bytes()), (0, 0));
    assert_eq!(context.alloc_pinned(0).expect("no memory").bytes(), 0);
}

#[test]
fn copies_go_in_all_directions() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let bytes: Vec<u8> = (0..100).collect();
    let (a, b) = (upload(&stream, &bytes), upload(&stream, &[0u8; 100]));
    assert_eq!(download::<u8>(&stream, &a), bytes);
    stream.copy(a.slice(10..20).expect("a part"), b.slice(50..60).expect("a part")).expect("a copy");
    stream.copy(b.slice(50..60).expect("a part"), b.slice(0..10).expect("a part")).expect("a copy");
    let held = download::<u8>(&stream, &b);
    assert_eq!((&held[..10], &held[10..50], &held[50..60]), (&bytes[10..20], &[0; 40][..], &bytes[10..20]));
    let mut host = context.alloc_pinned(30).expect("memory");
    host.write(|held| held.copy_from_slice(&bytes[..30])).expect("a write");
    stream.copy_to_device(&host, 5, b.slice(90..100).expect("a part")).expect("a copy");
    stream.copy_to_host(b.slice(88..98).expect("a part"), &mut host, 20).expect("a copy");
    let got = host.read(<[u8]>::to_vec).expect("a read");
    assert_eq!((&got[..20], &got[20..]), (&bytes[..20], &[0, 0, 5, 6, 7, 8, 9, 10, 11, 12][..]));
    // Nothing is asked of the driver for nothing.
    let nothing = a.slice(100..100).expect("a part");
    stream.copy(nothing, nothing).expect("a copy");
    stream.write_now(&[], nothing).expect("a copy");
    stream.read_now(nothing, &mut []).expect("a copy");
    stream.copy_to_device(&host, 30, nothing).expect("a copy");
    stream.copy_to_host(nothing, &mut host, 30).expect("a copy");
    stream.fill(nothing, 1).expect("a fill");
    stream.fill_words(nothing, 1).expect("a fill");
}

#[test]
fn two_contexts_are_separate_and_copy_to_each_other() {
    let Some(machine) = Machine::new() else { return };
    let (one, two) = (machine.context(0), machine.context(1));
    let again = machine.context(0);
    assert!(one.same(&again) && !one.same(&two));
    let (on_one, on_two) = (one.stream().expect("a stream"), two.stream().expect("a stream"));
    let (a, b) = (upload(&on_one, &[7u8; 64]), upload(&on_two, &[0u8; 64]));
    // The order between the GPUs is that of events, too.
    on_one.fill(a.slice(0..32).expect("a part"), 9).expect("a fill");
    on_two.wait(&on_one.mark().expect("an event")).expect("a wait");
    on_two.copy(a.all(), b.all()).expect("a copy");
    assert_eq!(download::<u8>(&on_two, &b), [[9; 32], [7; 32]].concat());
    let others = [
        on_one.fill(b.all(), 1),
        on_one.fill_words(b.all(), 1),
        on_one.write_now(&[0; 64], b.all()),
        on_one.read_now(b.all(), &mut [0; 64]),
        on_two.mark().and_then(|event| event.record(&on_one)),
        on_one.copy(b.all(), b.slice(0..0).and_then(|_| b.slice(0..64)).expect("a part")),
    ];
    for error in others {
        assert!(matches!(error, Err(Error::OtherContext { .. })), "{error:?}");
    }
}

#[test]
fn memory_outlives_the_copies_that_use_it() {
    let Some(machine) = Machine::new() else { return };
    let (one, two) = (machine.context(0), machine.context(1));
    let (on_one, on_two) = (one.stream().expect("a stream"), two.stream().expect("a stream"));
    let to = upload(&on_two, &[0u8; 64]);
    let mut host = two.alloc_pinned(64).expect("memory");
    host.write(|held| held.fill(3)).expect("a write");
    on_two.copy_to_device(&host, 0, to.all()).expect("a copy");
    drop(host);
    assert_eq!(download::<u8>(&on_two, &to), [3; 64]);
    // The GPU whose memory ends does not do the copy.
    let from = upload(&on_one, &[5u8; 64]);
    on_two.copy(from.all(), to.all()).expect("a copy");
    drop(from);
    assert_eq!(download::<u8>(&on_two, &to), [5; 64]);
}

#[test]
fn a_thread_may_use_what_another_has_made() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = upload(&stream, &[1u8, 2, 3]);
    let held = std::thread::scope(|scope| scope.spawn(|| download::<u8>(&stream, &memory)).join());
    assert_eq!(held.expect("a thread"), [1, 2, 3]);
}

#[test]
fn ranges_and_lengths_are_checked_before_the_driver_is_asked() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = context.alloc(100).expect("memory");
    let mut host = context.alloc_pinned(10).expect("memory");
    let part = memory.slice(1..9).expect("a part");
    #[allow(clippy::reversed_empty_ranges, reason = "wrong on purpose")]
    let ranges = [memory.slice(0..101).err(), memory.slice(5..4).err(), part.part(0..9).err()];
    let others = [
        stream.copy_to_device(&host, 3, part).err(),
        stream.copy_to_device(&host, usize::MAX, part).err(),
        stream.copy_to_host(part, &mut host, 3).err(),
        stream.fill_words(part, 1).err(),
        stream.fill_words(memory.slice(4..10).expect("a part"), 1).err(),
        stream.copy(part, memory.slice(8..16).expect("a part")).err(),
    ];
    for error in ranges.into_iter().chain(others) {
        let error = error.expect("an error");
        assert!(matches!(error, Error::Range { .. }), "{error}");
    }
    let lengths = [
        stream.copy(part, memory.slice(20..21).expect("a part")).err(),
        stream.write_now(&[0; 7], part).err(),
        stream.read_now(part, &mut [0; 9]).err(),
    ];
    for error in lengths {
        assert!(matches!(error, Some(Error::Lengths { .. })), "{error:?}");
    }
}

#[test]
fn everything_may_move_between_threads() {
    fn may<T: Send + Sync>() {}
    may::<(Driver, Device, Context, Stream, Event)>();
    may::<(DeviceMemory, Pinned, Module, Function, Modules, Blas, Error)>();
}

/// The name of the test that follows, for the process that it starts.
const TOUCHES: &str = "host::driver::the_host_cannot_touch_device_memory";

#[test]
fn the_host_cannot_touch_device_memory() {
    let inner = std::env::var("OARLOCK_TEST_TOUCHES").ok();
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    if let Some(how) = inner {
        let stream = context.stream().expect("a stream");
        let memory = upload(&stream, &[1u8; 64]);
        let byte = memory.address() as *mut u8;
        if how == "reads" {
            // SAFETY: none: the process ends here, which is what is tested.
            unsafe { byte.read_volatile() };
        }
        // SAFETY: as above.
        unsafe { byte.write_volatile(1) };
        return;
    }
    for how in ["reads", "writes"] {
        let output = again(TOUCHES, "OARLOCK_TEST_TOUCHES", how);
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert_eq!(signal, Some(11), "{how}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn the_fake_driver_knows_what_was_freed() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let memory = upload(&stream, &[1u8; 64]);
    let address = memory.address();
    assert_eq!((machine.fill(address, 64), machine.fill(address, 65)), (0, 1));
    drop(memory);
    assert_eq!(machine.fill(address, 64), 1);
    // Its addresses are not used again.
    assert_ne!(upload(&stream, &[1u8; 64]).address(), address);
}

#[test]
fn a_stream_of_the_highest_priority_is_one() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let _usual = context.stream().expect("a stream");
    assert_eq!(machine.count(0, "fake_first_streams"), 0);
    let _first = context.priority_stream().expect("a stream");
    assert_eq!(machine.count(0, "fake_first_streams"), 1);
}
