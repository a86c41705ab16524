//! Pinned memory beside a GPU over fake libraries: what copies, launches and the host must wait for. Work on the fakes runs
//! when somebody needs it and not before, so each missing event shows as a number that is too old or too new.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{self, AttentionOptions, Mask, transfer};
use oarlock_tensor::{DType, Device, FlatBuffer, Par, Store, Tape};

use crate::common::{array, gpu, own_gpu, tensor};
use crate::gpu_memory::Shared;

/// Elements of a buffer.
const LEN: usize = 64;

/// A buffer on the GPU with the same value everywhere.
fn on_gpu(device: &Device, value: f32) -> FlatBuffer {
    let flat = FlatBuffer::pooled(device, 4 * LEN, "test").unwrap();
    write(&flat, value);
    flat
}

/// A pinned buffer with the same value everywhere.
fn pinned(device: &Device, value: f32) -> FlatBuffer {
    let flat = FlatBuffer::pinned(device, 4 * LEN, "test").unwrap();
    write(&flat, value);
    flat
}

fn write(flat: &FlatBuffer, value: f32) {
    transfer::write_with::<f32, _>(flat, 0..LEN, |values| values.fill(value)).unwrap();
}

/// The one value everywhere.
#[track_caller]
fn value(flat: &FlatBuffer) -> f32 {
    let values = transfer::read_with::<f32, _>(flat, 0..LEN, <[f32]>::to_vec).unwrap();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values[0]
}

fn all(flat: &FlatBuffer) -> Part<'_> {
    Part { flat, range: 0..LEN }
}

fn copy(device: &Device, from: &FlatBuffer, to: &FlatBuffer) {
    transfer::copy(device, DType::F32, &all(from), &all(to)).unwrap();
}

/// Adds the elements of `from` to those of `to`, on this device.
fn add(device: &Device, from: &FlatBuffer, to: &FlatBuffer) {
    transfer::accumulate(device, &all(from), &all(to), Store::Add).unwrap();
}

#[test]
fn a_launch_waits_for_the_copies_of_what_it_uses() {
    let Some(device) = gpu() else { return };
    let (host, state, sum) = (pinned(device, 2.0), on_gpu(device, 1.0), on_gpu(device, 10.0));
    copy(device, &host, &state);
    add(device, &state, &sum);
    assert_eq!(value(&sum), 12.0, "it reads what was uploaded");
    copy(device, &state, &host);
    add(device, &sum, &state);
    device.synchronize().unwrap();
    assert_eq!(value(&host), 2.0, "it writes after the download");
    copy(device, &state, &host);
    add(device, &state, &sum);
    assert_eq!((value(&sum), value(&host)), (26.0, 14.0));
}

#[test]
fn a_copy_waits_for_the_launches_before_it() {
    let Some(device) = gpu() else { return };
    let (host, state, sum) = (pinned(device, 2.0), on_gpu(device, 1.0), on_gpu(device, 10.0));
    add(device, &state, &sum);
    copy(device, &host, &state);
    // The host waits for the upload here.
    write(&host, 5.0);
    assert_eq!(value(&sum), 11.0, "the upload came after the launch that reads");
    add(device, &sum, &state);
    copy(device, &state, &host);
    assert_eq!(value(&host), 13.0, "the download came after the launch that writes");
}

#[test]
fn copies_of_one_block_keep_their_order() {
    let Some(device) = gpu() else { return };
    let (first, second, state) = (pinned(device, 2.0), pinned(device, 3.0), on_gpu(device, 1.0));
    copy(device, &first, &state);
    copy(device, &state, &second);
    assert_eq!(value(&second), 2.0, "a download after the upload");
    write(&first, 4.0);
    copy(device, &state, &second);
    copy(device, &first, &state);
    // The host waits for the upload alone.
    write(&first, 5.0);
    assert_eq!((value(&second), value(&state)), (2.0, 4.0), "an upload after the download");
}

#[test]
fn copies_of_one_piece_of_pinned_memory_keep_their_order() {
    let Some(device) = gpu() else { return };
    let (host, first, second) = (pinned(device, 2.0), on_gpu(device, 1.0), on_gpu(device, 3.0));
    copy(device, &host, &first);
    copy(device, &second, &host);
    // The host waits for the download, which waits for the upload.
    assert_eq!((value(&host), value(&first)), (3.0, 2.0));
    copy(device, &first, &host);
    copy(device, &host, &second);
    assert_eq!(value(&second), 2.0, "an upload after the download");
}

#[test]
fn the_host_waits_for_the_copies_of_what_it_uses() {
    let Some(device) = gpu() else { return };
    let beside = device.host_device();
    let (host, other, state) = (pinned(device, 2.0), pinned(device, 20.0), on_gpu(device, 1.0));
    copy(device, &state, &host);
    add(&beside, &host, &other);
    assert_eq!(value(&other), 21.0, "a launch beside the GPU reads what was downloaded");
    copy(device, &host, &state);
    add(&beside, &other, &host);
    assert_eq!((value(&state), value(&host)), (1.0, 22.0), "it writes after the upload");
    copy(device, &state, &host);
    write(&host, 7.0);
    assert_eq!(value(&host), 7.0, "the host writes after the download");
}

#[test]
fn a_block_that_is_still_copied_can_have_a_new_owner() {
    let Some(device) = own_gpu() else { return };
    let device = &device;
    let host = pinned(device, 0.0);
    let state = on_gpu(device, 3.0);
    let fresh = device.arena().n_fresh();
    copy(device, &state, &host);
    drop(state);
    // Zeros, by a launch.
    let next = FlatBuffer::pooled(device, 4 * LEN, "test").unwrap();
    assert_eq!(device.arena().n_fresh(), fresh, "it is the same memory");
    device.synchronize().unwrap();
    assert_eq!((value(&host), value(&next)), (3.0, 0.0));
    // The same for pinned memory, which the host writes.
    let old = pinned(device, 4.0);
    copy(device, &old, &next);
    drop(old);
    let other = pinned(device, 5.0);
    assert_eq!((value(&next), value(&other)), (4.0, 5.0));
}

#[test]
fn memory_that_a_form_borrows_is_no_longer_copied() {
    let Some(device) = own_gpu() else { return };
    let device = &device;
    let x = tensor(&array(1, &[1, 40, 64]), DType::F32, device);
    let gradient = || {
        let tape = Tape::new();
        let leaf = tape.leaf(&x);
        let q = ops::split_heads(&leaf, 32).unwrap();
        let o = ops::attention(&q, &q, &q, &Mask::Causal, &AttentionOptions::new(0.2)).unwrap();
        let gradients = tape.backward(&o.square().unwrap().sum_all().unwrap(), 1.0).unwrap();
        gradients.of(&leaf).unwrap().to_vec::<f32>().unwrap()
    };
    let expected = gradient();
    // A number for each row of each head: what the forward pass keeps, and what the backward pass works with.
    let mut blocks = device.arena().free();
    blocks.retain(|bytes| *bytes == 4 * 2 * 40);
    assert!(blocks.len() >= 2, "{blocks:?}");
    let held = |bytes: &usize| {
        let flat = FlatBuffer::pooled(device, *bytes, "test").unwrap();
        transfer::write_with::<u8, _>(&flat, 0..*bytes, |bytes| bytes.fill(9)).unwrap();
        let host = FlatBuffer::pinned(device, *bytes, "test").unwrap();
        (flat, host)
    };
    let (fresh, pairs) = (device.arena().n_fresh(), blocks.iter().map(held).collect::<Vec<_>>());
    assert_eq!(device.arena().n_fresh(), fresh);
    for ((flat, host), bytes) in pairs.iter().zip(&blocks) {
        let part = |flat, bytes| Part { flat, range: 0..bytes / 4 };
        transfer::copy(device, DType::F32, &part(flat, *bytes), &part(host, *bytes)).unwrap();
    }
    // The one that is copied first is used first, so that waiting for it does not mean the others.
    let hosts: Vec<_> = pairs.into_iter().rev().map(|(_, host)| host).collect();
    assert_eq!(gradient(), expected);
    for (host, bytes) in hosts.iter().zip(&blocks) {
        let intact =
            transfer::read_with::<u8, _>(host, 0..*bytes, |bytes| bytes.iter().all(|byte| *byte == 9));
        assert!(intact.unwrap(), "a block of {bytes} bytes was used before it was copied");
    }
}

#[test]
fn parts_are_copied_to_where_they_belong() {
    let Some(device) = gpu() else { return };
    let (host, state) = (pinned(device, 2.0), on_gpu(device, 1.0));
    let part = |flat, range| Part { flat, range };
    transfer::copy(device, DType::F32, &part(&host, 0..8), &part(&state, 16..24)).unwrap();
    let values = |flat| transfer::read_with::<f32, _>(flat, 0..LEN, <[f32]>::to_vec).unwrap();
    let expected = |range: std::ops::Range<usize>, inside, outside| {
        (0..LEN).map(|i| if range.contains(&i) { inside } else { outside }).collect::<Vec<_>>()
    };
    assert_eq!(values(&state), expected(16..24, 2.0, 1.0));
    write(&state, 6.0);
    transfer::copy(device, DType::F32, &part(&state, 8..10), &part(&host, 40..42)).unwrap();
    assert_eq!(values(&host), expected(40..42, 6.0, 2.0));
    let half = FlatBuffer::pinned(device, 2 * LEN, "test").unwrap();
    let halves = FlatBuffer::pooled(device, 2 * LEN, "test").unwrap();
    transfer::store(device, &[1.5, 2.5], &half, 3, DType::BF16).unwrap();
    transfer::copy(device, DType::BF16, &part(&half, 3..5), &part(&halves, 7..9)).unwrap();
    let mut loaded = [0.0; 4];
    transfer::load(&halves, 6, DType::BF16, &mut loaded).unwrap();
    assert_eq!(loaded, [0.0, 1.5, 2.5, 0.0]);
}

#[test]
fn memory_that_ranks_share_is_copied_in_order() {
    let Some(device) = gpu() else { return };
    let (shared, host) = (Shared::new(), pinned(device, 2.0));
    let flat = shared.flat();
    add(device, &on_gpu(device, 4.0), &flat);
    copy(device, &flat, &host);
    assert_eq!(value(&host), 5.0, "after the launch that writes");
    write(&host, 9.0);
    let sum = on_gpu(device, 0.0);
    add(device, &flat, &sum);
    copy(device, &host, &flat);
    add(device, &flat, &sum);
    assert_eq!(value(&sum), 14.0, "after one launch that reads, and before the other");
}

#[test]
fn pinned_memory_lies_beside_a_gpu_and_only_copies_reach_it_from_there() {
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    assert!(FlatBuffer::pinned(&cpu, 64, "test").unwrap_err().to_string().contains("beside a GPU"));
    let (Some(device), Some(other)) = (gpu(), own_gpu()) else { return };
    let (host, state) = (pinned(device, 2.0), on_gpu(device, 1.0));
    assert!(host.is_pinned() && !state.is_pinned());
    let failed = |from: &Part<'_>, to: &Part<'_>| transfer::copy(device, DType::F32, from, to).unwrap_err();
    failed(&Part { flat: &host, range: 60..70 }, &Part { flat: &state, range: 0..10 });
    failed(&Part { flat: &host, range: 0..10 }, &Part { flat: &state, range: 60..70 });
    failed(&Part { flat: &host, range: 0..10 }, &Part { flat: &state, range: 0..11 });
    transfer::accumulate(device, &all(&host), &all(&state), Store::Add).unwrap_err();
    transfer::accumulate(device, &all(&state), &all(&host), Store::Add).unwrap_err();
    transfer::accumulate(&other.host_device(), &all(&host), &all(&state), Store::Add).unwrap_err();
    assert_eq!((value(&host), value(&state)), (2.0, 1.0));
}
