//! DeepSpeed's pipeline engine: a model as a list of layers, divided over stages, trained by whole batches.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use oarlock_config::config::{PartitionMethod, PipelineArgs};
use oarlock_tensor::Tensor;

use super::engine::DeepSpeedEngine;
use super::initialize::{InitializeArgs, initialize_in};
use crate::accelerator::models::parts::{PartOutput, PartPasses};
use crate::accelerator::models::passes::Loss;
use crate::accelerator::models::prepare::Prepare;
use crate::nn::{self, Forward, Layer, Module, Unit, Visitor};
use crate::optim::Stepped;
use crate::{Error, Result};

/// The loss of a micro-batch: a mean, from the output of the last layer and the labels.
type LossFn = Box<dyn Fn(&Tensor, &Tensor) -> nn::Result<Tensor> + Send + Sync>;

/// The layers that are tied, by their keys.
type TiedLayers = HashMap<String, Arc<dyn Any + Send + Sync>>;

/// What makes a layer.
type Build = Box<dyn FnOnce(&mut TiedLayers) -> Result<Box<dyn Layer>>>;

/// How a tied layer is used.
type TiedForward<L> = Box<dyn Fn(&L, &Tensor) -> nn::Result<Tensor> + Send + Sync>;

/// How a layer is made. A layer takes no memory before its engine exists, and then on the ranks of its stage alone.
pub struct LayerSpec(Build);

impl LayerSpec {
    /// A layer.
    pub fn new<L: Layer + 'static>(build: impl FnOnce() -> nn::Result<L> + 'static) -> LayerSpec {
        LayerSpec(Box::new(|_| Ok(Box::new(build()?))))
    }
}

/// A layer whose parameters are those of every other layer with the same key, on whatever stage: DeepSpeed's
/// `TiedLayerSpec`. Their gradients are summed over the stages before the step.
pub struct TiedLayerSpec;

impl TiedLayerSpec {
    /// The layer of a key; the first that is built makes it for all.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<L: Layer + 'static>(key: &str, build: impl FnOnce() -> nn::Result<L> + 'static) -> LayerSpec {
        TiedLayerSpec::with_forward(key, build, |layer: &L, x| layer.forward(x))
    }

    /// As [`TiedLayerSpec::new`], with another use of the layer than its own: DeepSpeed's `forward_fn`.
    pub fn with_forward<L: Module + 'static>(
        key: &str,
        build: impl FnOnce() -> nn::Result<L> + 'static,
        forward: impl Fn(&L, &Tensor) -> nn::Result<Tensor> + Send + Sync + 'static,
    ) -> LayerSpec {
        let key = key.to_owned();
        LayerSpec(Box::new(move |known| {
            let layer = match known.get(&key) {
                Some(layer) => layer.clone().downcast::<L>().map_err(|_| {
                    Error::Usage(format!("TiedLayerSpec: the layers of \"{key}\" are of different types"))
                })?,
                None => {
                    let layer = Arc::new(build()?);
                    known.insert(key, layer.clone());
                    layer
                }
            };
            Ok(Box::new(Tied { layer, forward: Box::new(forward) }))
        }))
    }
}

/// A use of a tied layer.
struct Tied<L> {
    layer: Arc<L>,
    forward: TiedForward<L>,
}

impl<L: Module> Module for Tied<L> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.layer.visit(visitor);
    }

    fn kind(&self) -> &'static str {
        self.layer.kind()
    }
}

impl<L: Module> Forward<Tensor> for Tied<L> {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        (self.forward)(&self.layer, x)
    }
}

/// A layer as a field of the model.
struct AnyLayer(Box<dyn Layer>);

impl Module for AnyLayer {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.0.visit(visitor);
    }

    fn kind(&self) -> &'static str {
        self.0.kind()
    }
}

/// A model of layers one behind another, each from a tensor to a tensor, and the loss behind the last.
///
/// Parameters have the names of their layers' numbers ("0.weight"), tied ones those of the first.
///
/// ```
/// use oarlock::deepspeed::{self, Config, InitializeArgs, LayerSpec, PipelineModule};
/// use oarlock::nn::{self, Linear, Tanh};
/// use oarlock::Tensor;
///
/// # fn main() -> oarlock::Result<()> {
/// let layers = vec![
///     LayerSpec::new(|| Linear::new(4, 16)),
///     LayerSpec::new(|| Ok(Tanh)),
///     LayerSpec::new(|| Linear::new(16, 1)),
/// ];
/// // With `num_stages(2)` on two ranks each of them has a part of the layers.
/// let net = PipelineModule::new(layers, nn::mse_loss)?.num_stages(1);
/// let config = Config::from_text("ds.json", r#"{
///     "train_micro_batch_size_per_gpu": 2,
///     "gradient_accumulation_steps": 4,
///     "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
/// }"#)?;
/// let (engine, ()) = deepspeed::initialize_pipeline(InitializeArgs::new(net, config))?;
/// let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], engine.device())?;
/// let y = Tensor::from_slice(&[1.0f32; 2], [2, 1], engine.device())?;
/// let mut data = std::iter::repeat((x, y)).map(Ok);
/// let first = engine.train_batch(&mut data)?;
/// for _batch in 0..20 {
///     engine.train_batch(&mut data)?;
/// }
/// assert!(engine.eval_batch(&mut data)? < first);
/// # Ok(())
/// # }
/// ```
pub struct PipelineModule {
    layers: Vec<Unit<AnyLayer>>,
    loss_fn: LossFn,
    args: PipelineArgs,
}

impl PipelineModule {
    /// A model of these layers on one stage.
    ///
    /// # Errors
    /// What building a layer reports.
    pub fn new(
        layers: Vec<LayerSpec>,
        loss_fn: impl Fn(&Tensor, &Tensor) -> nn::Result<Tensor> + Send + Sync + 'static,
    ) -> Result<PipelineModule> {
        let mut tied = TiedLayers::new();
        let built = layers.into_iter().map(|LayerSpec(build)| Ok(Unit::new(AnyLayer(build(&mut tied)?))));
        Ok(PipelineModule {
            layers: built.collect::<Result<_>>()?,
            loss_fn: Box::new(loss_fn),
            args: PipelineArgs::default(),
        })
    }

    /// The stages; a pipeline has as many ranks.
    #[must_use]
    pub fn num_stages(mut self, num_stages: usize) -> PipelineModule {
        self.args.stages = num_stages.max(1);
        self
    }

    /// Parts of the model on each stage, for the interleaved schedule.
    #[must_use]
    pub fn num_virtual_stages(mut self, num_virtual_stages: usize) -> PipelineModule {
        self.args.virtual_stages = num_virtual_stages.max(1);
        self
    }

    /// What decides where a stage ends; the number of parameters, by default.
    #[must_use]
    pub fn partition_method(mut self, method: PartitionMethod) -> PipelineModule {
        self.args.partition = method;
        self
    }

    /// Whether the backward pass computes the activations of each layer again. DeepSpeed keeps the input of every
    /// `interval`-th layer alone; here that of each layer stays, and 0 is the one interval that keeps everything.
    #[must_use]
    pub fn activation_checkpoint_interval(self, interval: usize) -> PipelineModule {
        self.layers.iter().for_each(|layer| layer.unit_run().set_recompute(interval > 0));
        self
    }

    fn run(&self, layers: Range<usize>, x: &Tensor) -> nn::Result<Tensor> {
        let layers = self.layers.get(layers).unwrap_or_default();
        layers.iter().try_fold(x.clone(), |x, layer| layer.call(&x, |layer, x| layer.0.forward(x)))
    }
}

impl Module for PipelineModule {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for (index, layer) in self.layers.iter().enumerate() {
            visitor.child(&index.to_string(), layer);
        }
    }

    fn kind(&self) -> &'static str {
        "PipelineModule"
    }
}

/// The mean over a micro-batch; each weighs the same.
struct MicroBatchLoss(Tensor);

impl Loss for MicroBatchLoss {
    fn value(&self) -> &Tensor {
        &self.0
    }

    fn weight(&self) -> Option<f64> {
        Some(1.0)
    }
}

/// DeepSpeed's engine of a [`PipelineModule`]: only whole batches are trained, by [`PipelineEngine::train_batch`].
pub struct PipelineEngine {
    engine: DeepSpeedEngine<PipelineModule>,
}

/// As [`initialize`](super::initialize), for a model in stages. ZeRO stages 2 and 3 do not go with more than one.
///
/// # Errors
/// As `initialize`; a number of stages that does not divide the ranks, more stages than layers.
#[track_caller]
pub fn initialize_pipeline<L: Prepare>(
    args: InitializeArgs<PipelineModule, L>,
) -> Result<(PipelineEngine, L::Prepared)> {
    let pipeline = args.model.args.clone();
    let (engine, loader) = initialize_in(args, pipeline)?;
    Ok((PipelineEngine { engine }, loader))
}

impl PipelineEngine {
    /// Trains on the next `gradient_accumulation_steps` micro-batches: inputs and labels. All ranks call it; those of one
    /// pipeline take the same micro-batches, of which the first stage uses the inputs and the last the labels. Returns the
    /// mean loss over micro-batches and ranks, on every rank.
    ///
    /// # Errors
    /// Data that end within the batch, what a layer reports, an engine without an optimizer, a failed rank.
    #[track_caller]
    pub fn train_batch(&self, data: &mut dyn Iterator<Item = Result<(Tensor, Tensor)>>) -> Result<f64> {
        let n = self.engine.gradient_accumulation_steps();
        self.engine.train();
        self.engine.begin_window(n)?;
        let loss = self.pass(data)?;
        self.engine.end_window(n)?;
        Ok(loss)
    }

    /// The mean loss of as many micro-batches, without training.
    ///
    /// # Errors
    /// As [`PipelineEngine::train_batch`].
    #[track_caller]
    pub fn eval_batch(&self, data: &mut dyn Iterator<Item = Result<(Tensor, Tensor)>>) -> Result<f64> {
        self.engine.eval();
        let loss = self.pass(data);
        self.engine.train();
        loss
    }

    /// Steps, skipped ones among them.
    pub fn global_steps(&self) -> u64 {
        self.engine.global_steps()
    }

    /// The engine with its model, its learning rate and its checkpoints.
    pub fn engine(&self) -> &DeepSpeedEngine<PipelineModule> {
        &self.engine
    }

    /// The device of this rank.
    pub fn device(&self) -> &oarlock_tensor::Device {
        self.engine.device()
    }

    #[track_caller]
    fn pass(&self, data: &mut dyn Iterator<Item = Result<(Tensor, Tensor)>>) -> Result<f64> {
        let (engine, n) = (&self.engine, self.engine.gradient_accumulation_steps());
        let batches = data.take(n).collect::<Result<Vec<_>>>()?;
        if batches.len() < n {
            return Err(Error::Usage(format!(
                "train_batch takes {n} micro-batches (gradient_accumulation_steps), and the data ended after {}; begin with a \
                 fresh iterator, or repeat the data",
                batches.len()
            )));
        }
        let (accelerator, model) = (engine.accelerator(), engine.model());
        let labels =
            batches.iter().map(|(_, labels)| accelerator.inner.placed(labels)).collect::<Result<Vec<_>>>()?;
        let n_layers = model.module().layers.len();
        let mut forward = |model: &PipelineModule, layers: Range<usize>, micro_batch: usize, x: &Tensor| {
            let is_last = layers.end == n_layers;
            let x = model.run(layers, x)?;
            Ok(match is_last {
                false => PartOutput::Activations(x),
                true => PartOutput::Loss(MicroBatchLoss((model.loss_fn)(&x, &labels[micro_batch])?)),
            })
        };
        let losses = match model.pipeline() {
            Some(_) => accelerator.pipeline_window(
                model,
                PartPasses {
                    weights: &vec![1.0; n],
                    input: &|micro_batch| Ok(batches[micro_batch].0.clone()),
                    forward: &mut forward,
                    is_head_loss: false,
                },
            )?,
            // One stage: micro-batches one behind another.
            None => {
                let mut losses = Vec::with_capacity(n);
                for (micro_batch, (x, _)) in batches.iter().enumerate() {
                    let output = model.call(x, |model, x| forward(model, 0..n_layers, micro_batch, x))?;
                    let PartOutput::Loss(loss) = output else { continue };
                    if model.is_training() {
                        accelerator.backward(&loss)?;
                    }
                    losses.push(loss);
                }
                losses
            }
        };
        let mut sum = [0.0];
        for loss in &losses {
            sum[0] += loss.0.item::<f64>()?;
        }
        accelerator.reduce_sum(&mut sum)?;
        Ok(sum[0] / (n * accelerator.data_ranks().world_size()) as f64)
    }
}

impl DeepSpeedEngine<PipelineModule> {
    /// Begins a window of `n` micro-batches that weigh the same.
    #[track_caller]
    fn begin_window(&self, n: usize) -> Result<()> {
        self.accelerator().accumulation_window(self.optimizer("train_batch")?, n as f64).map(|_| ())
    }

    /// Steps behind it.
    #[track_caller]
    fn end_window(&self, n: usize) -> Result<Option<Stepped>> {
        self.pass_micro_steps(n.saturating_sub(1));
        self.step()
    }
}
