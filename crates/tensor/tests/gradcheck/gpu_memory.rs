//! Memory on a GPU over fake libraries: its order, and host memory that launches use as well.

use std::cell::UnsafeCell;
use std::sync::Arc;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::{Format, Layout};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{self, transfer};
use oarlock_tensor::{
    Backing, DType, Device, FlatBuffer, FlatParams, Init, Par, Param, ParamLocation, Shape, Store, Tape,
    Tensor, is_out_of_memory,
};

use crate::common::{gpu, gpu_in_segments, gpu_number, own_gpu};

/// Elements of a buffer.
const LEN: usize = 64;

/// Memory of the host that other ranks write as well.
#[derive(Clone)]
pub struct Shared(Arc<Lines>);

#[repr(align(64))]
struct Lines(UnsafeCell<[f32; LEN]>);

// SAFETY: the tests touch it from one thread, when no launch is pending.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

// SAFETY: it is aligned, and neither its address nor its size changes.
unsafe impl Backing for Shared {
    fn ptr(&self) -> *mut u8 {
        self.0.0.get().cast()
    }
    fn len_bytes(&self) -> usize {
        4 * LEN
    }
}

impl Shared {
    pub fn new() -> Shared {
        Shared(Arc::new(Lines(UnsafeCell::new([1.0; LEN]))))
    }

    pub fn flat(&self) -> FlatBuffer {
        FlatBuffer::over(Box::new(self.clone()))
    }

    /// As another rank sees it, without waiting for anything.
    fn seen(&self) -> [f32; LEN] {
        // SAFETY: nobody writes it now.
        unsafe { *self.0.0.get() }
    }

    /// As another rank writes it.
    fn write(&self, index: usize, value: f32) {
        // SAFETY: nobody else touches it now.
        unsafe { (*self.0.0.get())[index] = value }
    }
}

fn wait(flat: &FlatBuffer) {
    flat.pending().unwrap().wait().unwrap();
}

/// Adds the elements of `from` to those of `to`.
fn add(device: &Device, from: &FlatBuffer, to: &FlatBuffer, range: std::ops::Range<usize>) {
    let [from, to] = [from, to].map(|flat| Part { flat, range: range.clone() });
    transfer::accumulate(device, &from, &to, Store::Add).unwrap();
}

#[test]
fn launches_and_the_host_take_turns_on_shared_memory() {
    let Some(device) = gpu() else { return };
    let (shared, other) = (Shared::new(), Shared::new());
    let (flat, by) = (shared.flat(), other.flat());
    assert!(flat.pending().is_none(), "nothing was launched");
    add(device, &by, &flat, 0..LEN);
    add(device, &by, &flat, 0..LEN);
    assert_eq!(shared.seen()[0], 1.0, "what is launched shows when it is waited for");
    wait(&flat);
    assert_eq!(shared.seen(), [3.0; LEN]);
    // What the host writes now, later launches see, in both buffers.
    shared.write(5, 10.0);
    wait(&by);
    other.write(6, 20.0);
    add(device, &by, &flat, 0..LEN);
    wait(&flat);
    assert_eq!(shared.seen()[4..8], [4.0, 11.0, 23.0, 4.0]);
    device.synchronize().unwrap();
}

#[test]
fn what_other_ranks_write_beside_a_launch_stays() {
    let Some(device) = gpu() else { return };
    let (shared, other) = (Shared::new(), Shared::new());
    let (flat, by) = (shared.flat(), other.flat());
    add(device, &by, &flat, 0..16);
    add(device, &by, &flat, 48..LEN);
    // Another rank owns what lies between, and writes it without asking this one.
    shared.write(16, 7.0);
    shared.write(47, 8.0);
    wait(&flat);
    let seen = shared.seen();
    assert_eq!((seen[15], seen[16], seen[17]), (2.0, 7.0, 1.0));
    assert_eq!((seen[46], seen[47], seen[48]), (1.0, 8.0, 2.0));
}

#[test]
fn what_was_launched_on_shared_memory_is_there_when_its_buffer_ends() {
    let Some(device) = gpu() else { return };
    let (shared, by) = (Shared::new(), Shared::new().flat());
    let flat = shared.flat();
    add(device, &by, &flat, 0..LEN);
    drop(flat);
    assert_eq!(shared.seen(), [2.0; LEN]);
}

#[test]
fn the_host_reads_and_writes_shared_memory_in_order() {
    let Some(device) = gpu() else { return };
    let (flat, by) = (Shared::new().flat(), Shared::new().flat());
    add(device, &by, &flat, 0..LEN);
    transfer::write_with::<f32, _>(&flat, 0..2, |values| values[0] += 40.0).unwrap();
    add(device, &by, &flat, 0..LEN);
    let values = transfer::read_with::<f32, _>(&flat, 0..3, <[f32]>::to_vec).unwrap();
    assert_eq!(values, [43.0, 3.0, 3.0]);
}

#[test]
fn buffers_of_the_pool_are_written_in_part() {
    let Some(device) = gpu() else { return };
    let flat = FlatBuffer::pooled(device, 4 * LEN, "test").unwrap();
    transfer::write_with::<f32, _>(&flat, 0..LEN, |values| values.fill(2.0)).unwrap();
    transfer::write_with::<f32, _>(&flat, 8..16, |values| values[3] = 5.0).unwrap();
    let values = transfer::read_with::<f32, _>(&flat, 0..LEN, <[f32]>::to_vec).unwrap();
    let expected: Vec<f32> = (0..LEN).map(|i| if i == 11 { 5.0 } else { 2.0 }).collect();
    assert_eq!(values, expected);
    assert!(flat.pending().is_none(), "the host does not see it");
}

#[test]
fn a_block_with_a_new_owner_is_written_behind_the_launches_of_the_old_one() {
    let Some(device) = gpu() else { return };
    let ones = Tensor::from_slice(&[1.0f32; 4096], [4096], device).unwrap();
    let mut sum = ones.add(&ones).unwrap();
    for _ in 0..8 {
        // Each block is free, and taken again, before anything has run.
        sum = sum.add(&ones).unwrap();
        drop(ones.mul(&ones).unwrap());
    }
    assert_eq!(sum.to_vec::<f32>().unwrap(), [10.0; 4096]);
}

#[test]
fn tensors_of_other_devices_are_refused() {
    let Some(device) = gpu() else { return };
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    let [there, here] = [device, &cpu].map(|on| Tensor::from_slice(&[1.0f32, 2.0], [2], on).unwrap());
    for (a, b) in [(&there, &here), (&here, &there)] {
        let error = a.add(b).unwrap_err().to_string();
        assert!(error.contains("different devices"), "{error}");
    }
    // Buffers say so as well, which no op has compared before.
    let [ours, theirs] = [device, &cpu].map(|on| FlatBuffer::pooled(on, 8, "test").unwrap());
    for on in [device, &cpu] {
        let [from, to] = [&ours, &theirs].map(|flat| Part { flat, range: 0..2 });
        let error = transfer::copy(on, DType::F32, &from, &to).unwrap_err().to_string();
        assert!(error.contains("in use on another device"), "{error}");
    }
    assert_eq!(there.to_device(&cpu).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(here.to_device(device).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn free_blocks_give_way_where_the_memory_of_a_gpu_is_used_up() {
    // No other test uses the memory of this GPU.
    const ALONE: usize = 1;
    let Some(device) = gpu_number(ALONE) else { return };
    device.arena().keep_blocks_apart();
    let total = device.gpu_info().unwrap().unwrap().memory_bytes;
    // Blocks of which two do not fit at once.
    for part in [45, 48, 52] {
        let bytes = total / 100 * part;
        let buffer = device.arena().allocate(bytes, "a large block").unwrap();
        assert!(device.arena().bytes() < bytes + total / 10, "what did not fit went back");
        drop(buffer);
    }
    let error = device.arena().allocate(2 * total, "too much").err().expect("no memory");
    let said = error.to_string();
    assert!(
        is_out_of_memory(&error) && said.contains("has reserved") && said.contains("are allocated"),
        "{said}"
    );
    // The pool goes on.
    drop(device.arena().allocate(total / 2, "a large block").unwrap());
    drop(device);
    // The same with segments.
    let Some(device) = gpu_number(ALONE) else { return };
    for part in [45, 48, 52] {
        let bytes = total / 100 * part;
        let buffer = device.arena().allocate(bytes, "a large block").unwrap();
        assert!(device.arena().bytes() < bytes + (2 << 20) + 1, "what did not fit went back");
        drop(buffer);
    }
    let _kept = device.arena().allocate(1000, "a small block").unwrap();
    let error = device.arena().allocate(2 * total, "too much").err().expect("no memory");
    let said = error.to_string();
    let words = format!("{} bytes, of which 1024 are allocated", 2 << 20);
    assert!(is_out_of_memory(&error) && said.contains("for too much") && said.contains(&words), "{said}");
}

#[test]
fn a_pool_of_segments_calls_the_driver_seldom() {
    let Some(device) = gpu_in_segments() else { return };
    let dry = Device::dry(Isa::detect(), Par::solo()).as_dry_gpu(80 << 30);
    let mut state = 1u64;
    let mut random = move |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let calls = || device.gpu_counts().unwrap().allocations;
    let before = calls();
    for _ in 0..50 {
        // The lengths of a batch: what a layer keeps is there until its backward pass.
        let tokens = 16 + random(180);
        for device in [&device, &dry] {
            let take = |per_token: usize| device.arena().allocate(tokens * per_token, "activation").unwrap();
            let mut kept: Vec<_> = (0..3).flat_map(|_| [take(2048), take(4096), take(5000)]).collect();
            while kept.pop().is_some() {
                drop(take(2048));
            }
        }
    }
    let held = device.arena().memory_stats();
    assert!(calls() - before <= 12, "{} calls for 900 blocks", calls() - before);
    assert_eq!(device.arena().n_fresh() as u64, calls() - before, "nothing was freed");
    // Nor is much of it lost between blocks, or in the last segment.
    assert!(held.peak_reserved <= held.peak_allocated + held.peak_allocated / 4 + (2 << 20), "{held:?}");
    assert_eq!((held, device.arena().n_fresh()), (dry.arena().memory_stats(), dry.arena().n_fresh()));
    assert_eq!(device.arena().free(), dry.arena().free());
    device.arena().trim();
    assert_eq!((device.arena().bytes(), device.arena().free()), (0, vec![]));
}

#[test]
fn a_piece_keeps_the_copies_of_its_former_owners() {
    let Some(device) = gpu_in_segments() else { return };
    let device = &device;
    let bytes = 4 * 128;
    let filled = |value: f32| {
        let flat = FlatBuffer::pooled(device, bytes, "test").unwrap();
        transfer::write_with::<f32, _>(&flat, 0..128, |values| values.fill(value)).unwrap();
        flat
    };
    fn all(flat: &FlatBuffer) -> Part<'_> {
        Part { flat, range: 0..128 }
    }
    // Two neighbors are copied and freed in these orders, become one piece, and that is cut in another way. The copies follow
    // each other, so that whoever waits for the later one waits for both.
    for (copied, freed, is_quiet) in
        [([0, 1], [0, 1], false), ([0, 1], [1, 0], false), ([1, 0], [0, 1], false), ([0, 1], [0, 1], true)]
    {
        let mut flats = [3.0, 4.0].map(|value| Some(filled(value)));
        let hosts = [(); 2].map(|()| FlatBuffer::pinned(device, bytes, "test").unwrap());
        for i in copied {
            let from = flats[i].as_ref().unwrap();
            transfer::copy(device, DType::F32, &all(from), &all(&hosts[i])).unwrap();
        }
        let fresh = device.arena().n_fresh();
        freed.into_iter().for_each(|i| flats[i] = None);
        let next = |bytes| FlatBuffer::pooled(device, bytes, "test").unwrap();
        // Zeros, by launches; or the first owner launches nothing, and what is left has another one.
        let quiet = is_quiet.then(|| device.arena().allocate(bytes, "test").unwrap());
        let next = if is_quiet { vec![next(bytes)] } else { vec![next(3 * bytes / 2), next(bytes / 2)] };
        assert_eq!(device.arena().n_fresh(), fresh, "it is the same memory");
        device.synchronize().unwrap();
        for (host, value) in hosts.iter().zip([3.0, 4.0]) {
            let seen = transfer::read_with::<f32, _>(host, 0..128, <[f32]>::to_vec).unwrap();
            assert_eq!(seen, [value; 128], "what was launched later does not come before the copy");
        }
        drop((next, quiet));
    }
}

#[test]
fn a_device_that_counts_for_a_gpu_counts_a_weight_that_is_dequantized() {
    let Some(gpu) = own_gpu() else { return };
    let layout = Layout { rows: 48, cols: 32, format: Format::Int8 };
    let scratch = |device: &Device, rows: usize| {
        let shape = Shape::new(&[layout.n_words()]).unwrap();
        let (places, bytes) = (vec![ParamLocation { first: 0, shape }], 4 * layout.n_words());
        let flat = match device.is_dry() {
            true => FlatBuffer::dry(bytes),
            false => FlatBuffer::pooled(device, bytes, "words").unwrap(),
        };
        let words = Param::new(shape, Init::Zeros);
        words.settle(Arc::new(FlatParams::new(places, DType::I32, flat, None, device).unwrap()), 0);
        let tape = Tape::new();
        let x = tape.leaf(&Tensor::zeros([rows, layout.cols], DType::BF16, device).unwrap());
        let y = ops::linear_quantized(&x, &words, layout).unwrap();
        drop(tape.backward(&y.sum([0, 1]).unwrap(), 1.0).unwrap());
        device.synchronize().unwrap();
        let usage = device.arena().usage().into_iter();
        usage.filter(|(name, _)| *name == "scratch").map(|(_, usage)| usage.peak_bytes).max().unwrap_or(0)
    };
    let dry = gpu.as_dry();
    // Few rows are multiplied by the codes.
    assert_eq!([scratch(&gpu, 256), scratch(&dry, 256)], [0; 2]);
    let of_whole = [scratch(&gpu, 257), scratch(&dry, 257)];
    assert_eq!(of_whole[0], of_whole[1]);
    assert!(of_whole[0] >= 2 * layout.n_elems(), "{of_whole:?}");
}
