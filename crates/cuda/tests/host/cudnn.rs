//! Attention by cuDNN over the fake one, which computes what the graphs say.

use std::sync::Arc;

use half::{bf16, f16};
use oarlock_cuda::attention::AttentionShape;
use oarlock_cuda::cudnn::{Backward, Cudnn, CudnnAttention, Forward, Pass};
use oarlock_cuda::driver::Stream;
use oarlock_cuda::libraries::{Libraries, Library};
use oarlock_cuda::{Element, Error};
use oarlock_reference::attention::Operands;

use super::{Machine, download, fresh, upload};
use crate::attention::of_reference;
use crate::numbers::{Float, assert_close, f64s, values};

/// A workspace that is enough.
const ROOM: usize = 1 << 20;

const SHAPE: AttentionShape = AttentionShape {
    batch: 2,
    q_len: 13,
    kv_len: 13,
    kv_capacity: 13,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    scale: 0.25,
    causal: true,
    window: None,
    logit_cap: None,
};

fn cudnn(machine: &Machine) -> (Arc<Stream>, CudnnAttention) {
    let stream = Arc::new(machine.context(0).stream().expect("a stream"));
    let cudnn = Cudnn::find(&machine.libraries()).expect("a library");
    let attention = CudnnAttention::new(&cudnn, &stream).expect("a handle");
    (stream, attention)
}

/// Both passes against f64.
fn compare<T: Float>(stream: &Arc<Stream>, cudnn: &CudnnAttention, s: &AttentionShape, tolerance: f64) {
    let (n_q, n_k) = (s.batch * s.q_len * s.heads * s.head_dim, s.batch * s.kv_len * s.kv_heads * s.head_dim);
    let [q, k, v, d_o] = [(1, n_q), (2, n_k), (3, n_k), (4, n_q)].map(|(seed, n)| values::<T>(seed, n));
    let (xq, xk, xv, x_o) = (f64s(&q), f64s(&k), f64s(&v), f64s(&d_o));
    let x = Operands { q: &xq, k: &xk, v: &xv, d_o: &x_o, doc_start: None, keeps: None };
    let want = of_reference(s).attention(&x);
    let [q, k, v, d_o] = [q, k, v, d_o].map(|x| upload(stream, &x));
    let [o, d_q] = [n_q; 2].map(|n| fresh::<T>(stream, n));
    let [d_k, d_v] = [n_k; 2].map(|n| fresh::<T>(stream, n));
    let lse = fresh::<f32>(stream, s.batch * s.heads * s.q_len);
    let workspace = stream.context().alloc(ROOM).expect("memory");
    let forward = Forward { q: q.all(), k: k.all(), v: v.all(), o: o.all(), lse: lse.all() };
    let of = (s, T::ELEMENT);
    cudnn.forward(of, &forward, (workspace.all(), ROOM)).unwrap_or_else(|error| panic!("{error}"));
    let backward = Backward { forward, d_o: d_o.all(), d_q: d_q.all(), d_k: d_k.all(), d_v: d_v.all() };
    cudnn.backward(of, &backward, (workspace.all(), ROOM)).unwrap_or_else(|error| panic!("{error}"));
    assert_close("log-sum-exps", &download::<f32>(stream, &lse), &want.lse, 1e-5);
    for (what, got, want) in [
        ("output", &o, &want.o),
        ("gradient of queries", &d_q, &want.dq),
        ("gradient of keys", &d_k, &want.dk),
        ("gradient of values", &d_v, &want.dv),
    ] {
        assert_close(&format!("{what}, {s:?}"), &download::<T>(stream, got), want, tolerance);
    }
}

#[test]
fn attention_matches_the_reference() {
    let Some(machine) = Machine::new() else { return };
    let (stream, cudnn) = cudnn(&machine);
    compare::<bf16>(&stream, &cudnn, &SHAPE, 3e-2);
    compare::<f16>(&stream, &cudnn, &SHAPE, 4e-3);
    compare::<f16>(&stream, &cudnn, &AttentionShape { window: Some(4), ..SHAPE }, 4e-3);
    compare::<f16>(&stream, &cudnn, &AttentionShape { kv_heads: 4, causal: false, ..SHAPE }, 4e-3);
    compare::<f16>(&stream, &cudnn, &AttentionShape { scale: 0.125, ..SHAPE }, 4e-3);
    // Made once for each shape, type and pass.
    compare::<f16>(&stream, &cudnn, &SHAPE, 4e-3);
    assert_eq!(machine.count(4, "fake_cudnn_plans"), 10);
    assert_eq!(machine.count(4, "fake_cudnn_runs"), 12);
}

#[test]
fn only_what_has_a_graph_and_fits_is_planned() {
    let Some(machine) = Machine::new() else { return };
    let (_stream, cudnn) = cudnn(&machine);
    let bytes = |shape: &AttentionShape, element, limit| {
        cudnn.workspace_bytes((shape, element, Pass::Backward), limit).expect("an answer")
    };
    // That of the plan, and the sums between its parts.
    assert_eq!(bytes(&SHAPE, Element::BF16, ROOM), Some(65536 + 512));
    assert_eq!(bytes(&SHAPE, Element::BF16, 65536 + 512), Some(65536 + 512));
    // The engine that needs nothing is not deterministic.
    assert_eq!(bytes(&SHAPE, Element::BF16, 65536 + 511), None);
    assert_eq!(bytes(&SHAPE, Element::F32, ROOM), None);
    for shape in [
        AttentionShape { logit_cap: Some(30.0), ..SHAPE },
        AttentionShape { q_len: 12, ..SHAPE },
        AttentionShape { kv_capacity: 16, ..SHAPE },
        AttentionShape { head_dim: 12, ..SHAPE },
        AttentionShape { head_dim: 136, ..SHAPE },
    ] {
        assert_eq!(bytes(&shape, Element::BF16, ROOM), None, "{shape:?}");
    }
    // Success without a proposal is no plan either.
    machine.tell(4, "fake_cudnn_proposals", 0);
    assert_eq!(
        bytes(&AttentionShape { q_len: 7, kv_len: 7, kv_capacity: 7, ..SHAPE }, Element::BF16, ROOM),
        None
    );
}

#[test]
fn operands_that_do_not_fit_and_failures_are_errors() {
    let Some(machine) = Machine::new() else { return };
    let (stream, cudnn) = cudnn(&machine);
    let (n_q, n_k) = (2 * 2 * 13 * 4 * 16, 2 * 2 * 13 * 2 * 16);
    let [q, o] = [n_q; 2].map(|n| fresh::<u8>(&stream, n));
    let [k, v] = [n_k; 2].map(|n| fresh::<u8>(&stream, n));
    let (lse, workspace) = (fresh::<f32>(&stream, 2 * 4 * 13), fresh::<u8>(&stream, ROOM));
    let pass = Forward { q: q.all(), k: k.all(), v: v.all(), o: o.all(), lse: lse.all() };
    let run = |pass: &Forward, workspace| cudnn.forward((&SHAPE, Element::BF16), pass, (workspace, ROOM));
    let short = k.slice(0..n_k - 2).expect("a part");
    let refused = |result| assert!(matches!(result, Err(Error::Attention { .. })), "{result:?}");
    refused(run(&Forward { k: short, ..pass }, workspace.all()));
    refused(run(&pass, workspace.slice(0..65535).expect("a part")));
    let long = fresh::<u8>(&stream, n_k + 8);
    refused(run(&Forward { k: long.slice(8..n_k + 8).expect("a part"), ..pass }, workspace.all()));
    let other = machine.context(1).alloc(n_k).expect("memory");
    let result = run(&Forward { k: other.all(), ..pass }, workspace.all());
    assert!(matches!(result, Err(Error::OtherContext { .. })), "{result:?}");
    run(&pass, workspace.all()).unwrap_or_else(|error| panic!("{error}"));
    stream.synchronize().expect("all work");
    assert_eq!(cudnn.lacks(), None);
}

#[test]
fn a_pass_that_fails_has_no_plan_any_more_and_others_have() {
    let Some(machine) = Machine::new() else { return };
    let (n_q, n_k) = (2 * 2 * 13 * 4 * 16, 2 * 2 * 13 * 2 * 16);
    let calls = ["cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute", "cudnnBackendExecute"];
    for (call, is_planned) in calls.iter().flat_map(|call| [(*call, false), (*call, true)]) {
        let (stream, cudnn) = cudnn(&machine);
        let [q, o] = [n_q; 2].map(|n| fresh::<u8>(&stream, n));
        let [k, v] = [n_k; 2].map(|n| fresh::<u8>(&stream, n));
        let (lse, workspace) = (fresh::<f32>(&stream, 2 * 4 * 13), fresh::<u8>(&stream, ROOM));
        let pass = Forward { q: q.all(), k: k.all(), v: v.all(), o: o.all(), lse: lse.all() };
        let bytes = |scale| {
            let shape = AttentionShape { scale, ..SHAPE };
            cudnn.workspace_bytes((&shape, Element::BF16, Pass::Forward), ROOM).expect("an answer")
        };
        if is_planned {
            bytes(SHAPE.scale).expect("a plan");
        }
        machine.fail(call, 0, 5000);
        // A plan that cannot be made is none; one that cannot be run is none from then on.
        let error = match is_planned || call == "cudnnBackendExecute" {
            true => {
                let done = cudnn.forward((&SHAPE, Element::BF16), &pass, (workspace.all(), ROOM));
                done.expect_err("the planned failure").to_string()
            }
            false => {
                assert_eq!(bytes(SHAPE.scale), None, "{call}");
                cudnn.lacks().expect("why")
            }
        };
        assert!(error.contains(call) && error.contains("9.28.1"), "{error}");
        assert_eq!(bytes(SHAPE.scale), None, "{call}");
        let said = cudnn.lacks().expect("why");
        assert!(said.starts_with(&format!("1 shapes by own kernels: {call} of cuDNN 9.28.1")), "{said}");
        bytes(2.0 * SHAPE.scale).expect("a plan for another shape");
        stream.synchronize().expect("all work");
    }
}

#[test]
fn libraries_that_cudnn_opens_by_name_are_loaded_before_it_needs_them() {
    let Some(machine) = Machine::new() else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let libraries = Libraries::Folder(folder.path().into());
    let add = |name| std::fs::copy(machine.folder().join(name), folder.path().join(name)).expect("a copy");
    add("libcudnn.so.9");
    for (missing, file) in [(Library::CublasLt, "libcublasLt.so.13"), (Library::Nvrtc, "libnvrtc.so.13")] {
        // A version for another CUDA than cuDNN's does not do.
        let other = folder.path().join(file.replace("13", "12"));
        std::fs::copy(machine.folder().join(file), other).expect("a copy");
        let error = Cudnn::find(&libraries).err().expect("an error");
        assert!(matches!(error, Error::NoLibrary { library, .. } if library == missing), "{error}");
        add(file);
    }
    Cudnn::find(&libraries).expect("all three");
}
