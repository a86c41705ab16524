//! How attention is computed: by cuDNN or in which tiles of the own kernels, as the environment asks or a table has measured.

use std::sync::{Arc, OnceLock};

use oarlock_cuda::attention::{TiledKernel, Tuned};
use oarlock_cuda::cudnn::{
    ATTENTION_WORKSPACE_BYTES, Backward, Choice, Cudnn, CudnnAttention, Forward, Pass, VARIABLE,
    attention_choice, wanted,
};
use oarlock_cuda::driver::{Device, Slice, Stream};
use oarlock_cuda::geometry::Geometry;
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::{Element, Error};

use super::{AttentionShape, Call, FormError, Found, Gpu, Kernels, failed};
use crate::arena::is_out_of_memory;

/// The choices for a GPU.
pub(super) struct AttentionForms {
    libraries: Libraries,
    /// What the environment asks for.
    wanted: Option<Choice>,
    /// What a table has measured.
    tuned: Tuned,
    /// Why not, where none can be used. Loaded when the table first names it.
    cudnn: OnceLock<std::result::Result<CudnnAttention, String>>,
}

impl AttentionForms {
    /// cuDNN that the environment asks for is there from the start, or the GPU is not opened: a run would not notice later
    /// that other kernels compute than those that were asked for.
    pub(super) fn from_environment(
        libraries: &Libraries,
        device: &Device,
        stream: &Arc<Stream>,
    ) -> oarlock_cuda::Result<AttentionForms> {
        let (wanted, tuned, cudnn) =
            (wanted(std::env::var_os(VARIABLE).as_deref())?, Tuned::of(device)?, OnceLock::new());
        if wanted == Some(Choice::Cudnn) {
            let installed = Cudnn::find_for(libraries, device.cuda_version()?)?;
            let found = CudnnAttention::new(&installed, stream)?;
            // It is new, and empty.
            drop(cudnn.set(Ok(found)));
        }
        Ok(AttentionForms { libraries: libraries.clone(), wanted, tuned, cudnn })
    }

    /// In words: who computes attention, and how much of a table is for this GPU.
    pub(super) fn describe(&self) -> String {
        let n = self.tuned.len();
        match (self.wanted, n, self.cudnn.get()) {
            (Some(Choice::Cudnn), ..) => "cuDNN where it has a plan, else own kernels".to_owned(),
            (_, 0, _) => "own kernels".to_owned(),
            (Some(Choice::Own), ..) => format!("own kernels, tiles by {n} measured entries"),
            (None, _, Some(Err(why))) => format!(
                "own kernels, tiles by {n} measured entries, some of which name cuDNN, which cannot be used: {why}"
            ),
            (None, ..) => format!("own kernels or cuDNN and tiles by {n} measured entries"),
        }
    }

    /// What cuDNN failed at so far, so that the own kernels compute it: how many shapes, and why.
    pub(super) fn lacks(&self) -> Option<String> {
        self.cudnn.get()?.as_ref().ok()?.lacks()
    }

    fn load(&self, gpu: &Gpu) -> oarlock_cuda::Result<Option<&CudnnAttention>> {
        if self.cudnn.get().is_none() {
            let cuda = gpu.context.device().cuda_version()?;
            let found = Cudnn::find_for(&self.libraries, cuda);
            let loaded = match found.and_then(|cudnn| CudnnAttention::new(&cudnn, &gpu.stream)) {
                Ok(cudnn) => Ok(cudnn),
                Err(error @ Error::Driver(_)) => return Err(error),
                Err(Error::NoLibrary { library, .. }) => {
                    Err(format!("{} was not found; {}", library.name(), library.command(Some(cuda))))
                }
                Err(error) => Err(error.to_string()),
            };
            // Another thread may have been faster; that one counts.
            drop(self.cudnn.set(loaded));
        }
        Ok(self.cudnn.get().and_then(|loaded| loaded.as_ref().ok()))
    }
}

/// The operands of a pass, in their order in [`Forward`] and [`Backward`].
pub(crate) enum Operands<'l> {
    Forward([Slice<'l>; 5]),
    Backward([Slice<'l>; 5], [Slice<'l>; 4]),
}

impl<'l> Kernels<'l> {
    /// A call of a kernel of attention for heads of this shape.
    ///
    /// # Errors
    /// [`FormError::NoForm`] if there is none.
    pub fn of_heads(&self, op: &'static str, (shape, of): (&AttentionShape, Element)) -> Found<Call<'l>> {
        self.kernel_of(op, &[of], Some(shape.unit_head_dim().ok_or(FormError::NoForm)?), None)
    }

    /// A call of a kernel with the tile that was measured to be the fastest, or the usual one, or the largest that the GPU has
    /// room for; and its grid.
    ///
    /// # Errors
    /// As [`Kernels::of_heads`], also where the GPU has no room for any tile.
    pub fn tiled(
        &self,
        kernel: TiledKernel,
        (shape, of): (&AttentionShape, Element),
    ) -> Found<(Call<'l>, Geometry)> {
        let head_dim = shape.unit_head_dim().ok_or(FormError::NoForm)?;
        let shared_bytes = self.gpu().context.limits().shared_bytes;
        let tile =
            self.gpu().attention.tuned.tile((shape, of), kernel, shared_bytes).ok_or(FormError::NoForm)?;
        let call = self.kernel_of(kernel.op(), &[of], Some(head_dim), Some(tile))?;
        Ok((call, shape.tiled(kernel, of, tile)))
    }

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
        let forms = &gpu.attention;
        if attention_choice(forms.wanted, &forms.tuned, (shape, of, pass)) == Choice::Own {
            return Ok(false);
        }
        let Some(cudnn) = forms.load(gpu).map_err(failed)? else { return Ok(false) };
        let bytes = cudnn.workspace_bytes((shape, of, pass), ATTENTION_WORKSPACE_BYTES).map_err(failed)?;
        let Some(bytes) = bytes else { return Ok(false) };
        let workspace = match self.temporary(bytes.max(1)) {
            Err(FormError::Failed(error)) if is_out_of_memory(&error) => {
                cudnn.give_up((shape, of, pass), ATTENTION_WORKSPACE_BYTES, error.to_string());
                return Ok(false);
            }
            workspace => workspace?,
        };
        let room = (workspace.slice()?, ATTENTION_WORKSPACE_BYTES);
        let forward = |&[q, k, v, o, lse]: &[Slice<'l>; 5]| Forward { q, k, v, o, lse };
        let done = match operands {
            Operands::Forward(all) => cudnn.forward((shape, of), &forward(all), room),
            Operands::Backward(all, [d_o, d_q, d_k, d_v]) => cudnn.backward(
                (shape, of),
                &Backward { forward: forward(all), d_o: *d_o, d_q: *d_q, d_k: *d_k, d_v: *d_v },
                room,
            ),
        };
        match done {
            // The plan is given up, and the own kernels write all that it may have written.
            Err(Error::Cudnn { .. }) => return Ok(false),
            done => done.map_err(failed)?,
        }
        self.note_launch();
        Ok(true)
    }
}
