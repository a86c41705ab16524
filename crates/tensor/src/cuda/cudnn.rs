//! Attention by cuDNN in forms of the op: which passes it takes, with a workspace from the GPU's pool.

use std::sync::Arc;

use oarlock_cuda::Element;
use oarlock_cuda::cudnn::{
    Backward, Choice, Cudnn, CudnnAttention, Forward, Pass, VARIABLE, attention_choice, wanted,
};
use oarlock_cuda::driver::{Slice, Stream};
use oarlock_cuda::libraries::Libraries;

use super::{AttentionShape, Found, Kernels, failed};

/// The most that a pass may use besides its operands: the deterministic backward pass has all scores in 16 bits.
const MOST_WORKSPACE: usize = 1 << 30;

/// cuDNN on a GPU, where the environment asks for it.
pub(super) struct CudnnForms {
    wanted: Option<Choice>,
    cudnn: Option<CudnnAttention>,
}

impl CudnnForms {
    /// What is asked for is there from the start, or the GPU is not opened: a run would not notice later that other kernels
    /// compute than those that were asked for.
    pub(super) fn from_environment(
        libraries: &Libraries,
        stream: &Arc<Stream>,
    ) -> oarlock_cuda::Result<CudnnForms> {
        let wanted = wanted(std::env::var_os(VARIABLE).as_deref())?;
        let cudnn = match wanted {
            Some(Choice::Cudnn) => Some(CudnnAttention::new(&Cudnn::find(libraries)?, stream)?),
            _ => None,
        };
        Ok(CudnnForms { wanted, cudnn })
    }
}

/// The operands of a pass, in their order in [`Forward`] and [`Backward`].
pub(crate) enum Operands<'l> {
    Forward([Slice<'l>; 5]),
    Backward([Slice<'l>; 5], [Slice<'l>; 4]),
}

impl<'l> Kernels<'l> {
    /// Computes a pass of attention by cuDNN, if that is the choice for it and has a plan; whether it did.
    pub fn attention_by_cudnn(
        &self,
        (shape, of): (&AttentionShape, Element),
        operands: &Operands<'l>,
    ) -> Found<bool> {
        let (gpu, pass) = match operands {
            Operands::Forward(_) => (self.gpu(), Pass::Forward),
            Operands::Backward(..) => (self.gpu(), Pass::Backward),
        };
        let capability = gpu.context.device().capability().map_err(failed)?;
        let choice = attention_choice(gpu.cudnn.wanted, (shape, of, pass), capability);
        if choice == Choice::Own {
            return Ok(false);
        }
        let Some(cudnn) = &gpu.cudnn.cudnn else { return Ok(false) };
        let bytes = cudnn.workspace_bytes((shape, of, pass), MOST_WORKSPACE).map_err(failed)?;
        let Some(bytes) = bytes else { return Ok(false) };
        let workspace = self.temporary(bytes.max(1))?;
        let room = (workspace.slice()?, MOST_WORKSPACE);
        let forward = |&[q, k, v, o, lse]: &[Slice<'l>; 5]| Forward { q, k, v, o, lse };
        match operands {
            Operands::Forward(all) => cudnn.forward((shape, of), &forward(all), room),
            Operands::Backward(all, [d_o, d_q, d_k, d_v]) => cudnn.backward(
                (shape, of),
                &Backward { forward: forward(all), d_o: *d_o, d_q: *d_q, d_k: *d_k, d_v: *d_v },
                room,
            ),
        }
        .map_err(failed)?;
        self.note_launch();
        Ok(true)
    }
}
