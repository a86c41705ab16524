//! What flat buffers lend: safe callers that nest, forget, panic, name one buffer twice or lie about ranges get an error, and
//! never elements that somebody else is writing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::{
    Part, Role, Rule, StepArgs, UpdateParts, Workspace, update as optimizer_step, workspace_bytes,
};
use oarlock_tensor::ops::{self, CustomOp, block_int, one_bit, transfer, update};
use oarlock_tensor::{
    Backing, DType, Device, FlatBuffer, FlatParams, Init, Par, Param, ParamHome, ParamLocation, Result,
    Shape, Store, Tape, Tensor,
};

const N: usize = 256;

/// Miri knows no protected pages, on which the strict device stands.
fn devices() -> Vec<Device> {
    let all = [Device::cpu, Device::staging, Device::strict];
    let here = if cfg!(miri) { &all[..2] } else { &all };
    here.iter().map(|device| device(Isa::detect(), Par::solo())).collect()
}

/// Turns of a loop; Miri takes its time.
fn turns(n: usize) -> usize {
    if cfg!(miri) { n / 40 } else { n }
}

fn cpu() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

fn flat(device: &Device, value: f32) -> FlatBuffer {
    let flat = FlatBuffer::pooled(device, 4 * N, "test").unwrap();
    transfer::store(device, &[value; N], &flat, 0, DType::F32).unwrap();
    flat
}

fn all(flat: &FlatBuffer) -> Part<'_> {
    Part { flat, range: 0..N }
}

fn write(flat: &FlatBuffer) -> bool {
    transfer::write_with::<f32, _>(flat, 0..N, |to| to.fill(1.0)).is_ok()
}

fn read(flat: &FlatBuffer) -> bool {
    transfer::read_with::<f32, _>(flat, 0..N, |from| from[0]).is_ok()
}

fn values(flat: &FlatBuffer) -> Vec<f32> {
    transfer::read_with::<f32, _>(flat, 0..N, <[f32]>::to_vec).unwrap()
}

#[test]
fn closures_that_use_the_buffer_again_get_errors() {
    // The strict device and the GPU run one copy at a time, so that a closure may move nothing there.
    let (device, flat) = (cpu(), flat(&cpu(), 0.0));
    let again = flat.clone();
    let uses = |flat: &FlatBuffer| {
        let mut out = [0.0];
        let load = transfer::load(flat, 0, DType::F32, &mut out).is_ok();
        [write(flat), read(flat), load, transfer::store(&device, &[1.0], flat, 0, DType::F32).is_ok()]
    };
    let inside = transfer::write_with::<f32, _>(&flat, 0..1, |_| uses(&again)).unwrap();
    assert_eq!(inside, [false; 4]);
    let inside = transfer::read_with::<f32, _>(&flat, 0..1, |_| uses(&again)).unwrap();
    assert_eq!(inside, [false, true, true, false]);
    let launches =
        |a: &FlatBuffer, b: &FlatBuffer| transfer::copy(&device, DType::F32, &all(a), &all(b)).is_ok();
    let other = self::flat(&device, 0.0);
    let inside =
        transfer::write_with::<f32, _>(&flat, 0..1, |_| [launches(&flat, &other), launches(&other, &flat)]);
    assert_eq!(inside.unwrap(), [false; 2]);
    let inside =
        transfer::read_with::<f32, _>(&flat, 0..1, |_| [launches(&flat, &other), launches(&other, &flat)]);
    assert_eq!(inside.unwrap(), [true, false]);
    assert_eq!(uses(&flat), [true; 4]);
}

/// Every op that writes a flat buffer and reads another, given one buffer for both.
#[test]
fn one_buffer_is_not_read_and_written_by_an_op() {
    for device in devices() {
        let (a, b) = (flat(&device, 1.0), flat(&device, 2.0));
        let part = |flat, range| Part { flat, range };
        let (low, high) = (part(&a, 0..64), part(&a, 64..128));
        let refused = [
            transfer::copy(&device, DType::F32, &low, &high),
            transfer::copy(&device, DType::F32, &all(&a), &all(&a)),
            transfer::convert(&device, (&low, DType::F32), (&high, DType::BF16)),
            transfer::accumulate(&device, &low, &high, Store::Add),
            update::squared_norms(&device, &low, &part(&a, 100..101)),
            one_bit::pack_signs(&device, &low, 0.5, &part(&a, 900..908)),
            one_bit::unpack_signs(&device, &part(&a, 900..908), 0, 0.5, &low),
            one_bit::sum_signs(&device, &part(&a, 900..908), 8, &[0.5], &low),
            block_int::quantize(
                &device,
                DType::F32,
                block_int::Bits::Eight,
                &low,
                &part(&a, 200..200 + words()),
            ),
            block_int::dequantize(
                &device,
                DType::F32,
                block_int::Bits::Eight,
                &part(&a, 200..200 + words()),
                Store::Add,
                &low,
            ),
        ];
        for (op, result) in refused.iter().enumerate() {
            assert!(result.is_err(), "op {op}");
        }
        assert_eq!([values(&a), values(&b)], [vec![1.0; N], vec![2.0; N]], "nothing was touched");
        transfer::copy(&device, DType::F32, &all(&b), &all(&a)).unwrap();
        assert_eq!(values(&a), [2.0; N]);
    }
}

fn words() -> usize {
    block_int::Bits::Eight.n_words(64)
}

#[test]
fn a_step_whose_parts_are_one_buffer_is_refused() {
    for device in devices() {
        let rule = Rule::Lion { beta1: 0.9, beta2: 0.99 };
        let [weights, grads, state] = [1.0, 0.5, 0.0].map(|value| flat(&device, value));
        let args = StepArgs { step: 1, lr: 1e-3, weight_decay: 0.0, grad_scale: 1.0 };
        let shape = Shape::new(&[N]).unwrap();
        let step = |weights: &FlatBuffer, grads: &FlatBuffer, state: &FlatBuffer| {
            let bytes = workspace_bytes(&device, &rule, &shape, Role::Matrix);
            let parts = UpdateParts {
                weights: all(weights),
                dtype: DType::F32,
                master: None,
                grads: all(grads),
                state: &[all(state)],
            };
            let workspace = &mut Workspace::new(&device, bytes)?;
            optimizer_step(&device, &rule, &args, &shape, Role::Matrix, &parts, workspace)
        };
        for (a, b, c) in
            [(&weights, &weights, &state), (&weights, &grads, &weights), (&weights, &grads, &grads)]
        {
            assert!(step(a, b, c).is_err());
        }
        let held = weights.read().unwrap();
        assert!(step(&weights, &grads, &state).is_err());
        drop(held);
        assert_eq!(values(&weights), [1.0; N]);
        step(&weights, &grads, &state).unwrap();
        assert!(values(&weights).iter().all(|x| *x < 1.0));
    }
}

#[test]
fn guards_are_forgotten_or_dropped_out_of_order() {
    let device = cpu();
    let flat = flat(&device, 0.0);
    let guards: Vec<_> = (0..10).map(|_| flat.read().unwrap()).collect();
    let mut guards: Vec<_> = guards.into_iter().map(Some).collect();
    for i in [3, 9, 0, 7, 1, 2, 8, 4, 6] {
        guards[i] = None;
        assert!(!write(&flat) && read(&flat));
    }
    guards[5] = None;
    assert!(write(&flat));
    let again = flat.clone();
    std::mem::forget(flat.read().unwrap());
    drop(flat);
    assert!(!write(&again) && read(&again), "it is read for good");
    let flat = self::flat(&device, 0.0);
    std::mem::forget(flat.write().unwrap());
    assert!(!write(&flat) && !read(&flat), "it is written for good");
}

#[test]
fn panics_give_back_what_was_lent() {
    let device = cpu();
    let flat = flat(&device, 0.0);
    let panics = |work: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    panics(&|| transfer::write_with::<f32, ()>(&flat, 0..N, |_| panic!("in a closure")).unwrap());
    panics(&|| transfer::read_with::<f32, ()>(&flat, 0..N, |_| panic!("in a closure")).unwrap());
    panics(&|| {
        let _guard = flat.write().unwrap();
        panic!("with a guard");
    });
    assert!(write(&flat) && read(&flat));
}

#[test]
fn ranges_and_places_outside_of_the_buffer_are_refused() {
    for device in devices() {
        let flat = flat(&device, 0.0);
        #[allow(clippy::reversed_empty_ranges)]
        for range in
            [0..N + 1, N..N + 1, 9..8, usize::MAX - 1..usize::MAX, 1 << 62..(1 << 62) + 1, 0..1 << 62]
        {
            assert!(transfer::write_with::<f32, _>(&flat, range.clone(), |_| ()).is_err(), "{range:?}");
            assert!(transfer::read_with::<f32, _>(&flat, range.clone(), |_| ()).is_err(), "{range:?}");
        }
        for first in [N, N - 3, 1 << 62, usize::MAX - 3, usize::MAX] {
            let place = ParamLocation { first, shape: Shape::new(&[4]).unwrap() };
            let made = FlatParams::new(vec![place], DType::F32, flat.clone(), None, &device);
            assert!(made.is_err(), "{first}");
        }
    }
}

/// A tensor of a weight is a lease: as long as there is one, also in a thread that nobody waits for, nothing writes it.
#[test]
fn weights_that_somebody_holds_are_not_written() {
    for device in devices() {
        let (weights, grads) = (flat(&device, 1.0), flat(&device, 0.0));
        let place = |first| ParamLocation { first, shape: Shape::new(&[4]).unwrap() };
        let (places, both) = (vec![place(0), place(4)], Some(grads.clone()));
        let home = Arc::new(FlatParams::new(places, DType::F32, weights.clone(), both, &device).unwrap());
        let weight = home.weight(0).unwrap();
        let (more, part) = (weight.clone(), weight.reshape([2, 2]).unwrap());
        drop(weight);
        assert!(transfer::store(&device, &[2.0], &weights, 0, DType::F32).is_err());
        drop(more);
        assert!(transfer::store(&device, &[2.0], &weights, 0, DType::F32).is_err());
        assert_eq!(part.to_vec::<f32>().unwrap(), [1.0; 4]);
        drop(part);
        transfer::store(&device, &[2.0], &weights, 0, DType::F32).unwrap();
        // Two places for gradients lie in one buffer: one at a time.
        let slot = home.grad(0).unwrap().unwrap();
        assert!(home.grad(1).is_err() && home.gradient(0).is_err() && !read(&grads));
        drop(slot);
        let mut slot = home.grad(1).unwrap().unwrap();
        slot.put(&Tensor::from_slice(&[3f32; 4], [4], &device).unwrap()).unwrap();
        assert!(slot.put(&Tensor::from_slice(&[3f32; 5], [5], &device).unwrap()).is_err());
        drop(slot);
        assert_eq!(values(&grads)[4..8], [3.0; 4]);
    }
}

/// A custom op that writes the weights that it has been given.
struct Meddler(Param, FlatBuffer, Arc<AtomicBool>);

impl CustomOp for Meddler {
    fn name(&self) -> &'static str {
        "meddler"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let weight = self.0.weight()?;
        self.2.fetch_or(write(&self.1), SeqCst);
        inputs[0].mul(&weight)
    }

    fn backward(&self, _: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let weight = self.0.weight()?;
        self.2.fetch_or(write(&self.1), SeqCst);
        Ok(vec![Some(grad.mul(&weight)?)])
    }

    fn params(&self) -> Vec<&Param> {
        vec![&self.0]
    }
}

#[test]
fn an_op_cannot_write_the_weights_that_it_uses() {
    let device = cpu();
    let weights = flat(&device, 2.0);
    let place = ParamLocation { first: 0, shape: Shape::new(&[4]).unwrap() };
    let home = Arc::new(FlatParams::new(vec![place], DType::F32, weights.clone(), None, &device).unwrap());
    let param = Param::new(Shape::new(&[4]).unwrap(), Init::Zeros);
    param.settle(home, 0);
    let wrote = Arc::new(AtomicBool::new(false));
    let tape = Tape::new();
    let x = tape.leaf(&Tensor::from_slice(&[1f32; 4], [4], &device).unwrap());
    let y = ops::custom(Meddler(param, weights.clone(), wrote.clone()), &[&x]).unwrap();
    let loss = y.sum_all().unwrap();
    let gradients = tape.backward(&loss, 1.0).unwrap();
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
    assert!(!wrote.load(SeqCst) && write(&weights));
}

/// Memory as aligned as that of devices.
#[repr(align(64))]
struct Aligned(#[allow(dead_code)] [u8; 4 * N]);

/// Memory that somebody else provides, which counts its ends.
struct Host(*mut Aligned, Arc<AtomicUsize>);

// SAFETY: it owns what it points to, which is reached through the buffer made of it alone.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

// SAFETY: an aligned box of its own, of fixed size and address; nobody looks into it but the buffer made of it.
unsafe impl Backing for Host {
    fn ptr(&self) -> *mut u8 {
        self.0.cast()
    }
    fn len_bytes(&self) -> usize {
        4 * N
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: it was a box.
        drop(unsafe { Box::from_raw(self.0) });
        self.1.fetch_add(1, SeqCst);
    }
}

/// Launches that are deferred keep what they use, whatever is dropped before them.
#[test]
fn memory_and_devices_are_dropped_before_their_launches() {
    for deferred in [false, !cfg!(miri)] {
        let device = if deferred { Device::strict(Isa::detect(), Par::solo()) } else { cpu() };
        let [from, to, third] = [1.0, 0.0, 0.0].map(|value| flat(&device, value));
        transfer::copy(&device, DType::F32, &all(&from), &all(&to)).unwrap();
        drop(from);
        transfer::accumulate(&device, &all(&to), &all(&third), Store::Add).unwrap();
        drop(to);
        drop(device);
        assert_eq!(values(&third), [1.0; N]);
        let launches = third.pending();
        drop(third);
        launches.map_or(Ok(()), |launches| launches.wait()).unwrap();
    }
}

/// Sums that many threads add to, of which each has it alone while it adds.
#[test]
fn threads_that_launch_on_one_buffer_have_it_one_at_a_time() {
    for device in devices() {
        let (sum, inside) = (flat(&device, 0.0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (device, sum, inside) = (device.clone(), sum.clone(), &inside);
                scope.spawn(move || {
                    let one = flat(&device, 1.0);
                    for _ in 0..turns(200) {
                        let added = transfer::accumulate(&device, &all(&one), &all(&sum), Store::Add);
                        inside.fetch_add(added.is_ok().into(), SeqCst);
                        drop(update::scale_clamp(&device, &sum, 0..N, 1.0, f32::MAX));
                    }
                });
            }
        });
        let n = inside.into_inner();
        assert!(n > 0);
        assert_eq!(values(&sum), [n as f32; N], "as often as it was told");
    }
}

#[test]
fn provided_memory_lives_as_long_as_anybody_has_it() {
    let (ended, device) = (Arc::new(AtomicUsize::new(0)), devices().pop().unwrap());
    let host = Host(Box::into_raw(Box::new(Aligned([0; 4 * N]))), ended.clone());
    let flat = FlatBuffer::over(Box::new(host));
    let ones = self::flat(&device, 1.0);
    transfer::copy(&device, DType::F32, &all(&ones), &all(&flat)).unwrap();
    let lease = flat.read().unwrap();
    drop(flat);
    assert_eq!(ended.load(SeqCst), 0);
    drop(lease);
    assert_eq!(ended.load(SeqCst), 1, "when its launches have run");
}
