//! Custom models: layers compared with torch's, parts that are frozen, shared or untouched, buffers, dropout, custom ops.

#[path = "own_model/parts.rs"]
mod parts;

use oarlock_tensor::cpu::difference::largest_magnitude;
use std::path::{Path, PathBuf};

use oarlock::model::{ClassifierInput, HfConfig, SequenceClassifier};
use oarlock::nn::{
    self, CrossEntropyLoss, CustomOp, Dropout, Embedding, Forward, KlReduction, KlTarget, LayerNorm, Linear,
    Mlp, Module, MultiHeadAttention, Param, Reduction, RmsNorm, Sequential, Silu, Unit,
};
use oarlock::weights::Strict;
use oarlock::{Accelerator, AcceleratorConfig, DType, Prepared, Tensor, optim};
use safetensors::tensor::TensorView;
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn ints(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|x| x.as_i64().unwrap() as i32).collect()
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32], allowed: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= allowed, "{what} [{index}]: got {got}, want {want}");
    }
}

fn alone(config: &AcceleratorConfig) -> Accelerator {
    let config = AcceleratorConfig { threads: Some(1), ..config.clone() };
    Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap()
}

fn weight(model: &dyn Module, name: &str) -> Vec<f32> {
    let named = nn::names_of(model).into_iter().find(|named| named.name == name).unwrap();
    named.param.weight().unwrap().to_vec::<f32>().unwrap()
}

#[derive(Module)]
struct Layers {
    embed: Embedding,
    norm: LayerNorm,
    attn: MultiHeadAttention,
    rms: RmsNorm,
    mlp: Mlp,
    head: Sequential,
}

impl Layers {
    fn new() -> nn::Result<Layers> {
        Ok(Layers {
            embed: Embedding::new(11, 8)?,
            norm: LayerNorm::new(8)?,
            attn: MultiHeadAttention::new(8, 2)?.causal(),
            rms: RmsNorm::new(8, 1e-6)?,
            mlp: Mlp::new(8, 16)?,
            head: Sequential::new().add(Linear::new(8, 6)?).add(Silu).add(Linear::new(6, 5)?.no_bias()),
        })
    }
}

impl Forward<Tensor> for Layers {
    type Output = Tensor;
    fn forward(&self, ids: &Tensor) -> nn::Result<Tensor> {
        let x = self.embed.forward(ids)?;
        let x = x.add(&self.attn.forward(&self.norm.forward(&x)?)?)?;
        let x = x.add(&self.mlp.forward(&self.rms.forward(&x)?)?)?;
        self.head.forward(&x)
    }
}

fn layers(dtype: Option<DType>) -> (Accelerator, Prepared<Layers>, oarlock::PreparedOptimizer) {
    let accelerator = alone(&AcceleratorConfig { mixed_precision: dtype, ..AcceleratorConfig::default() });
    let model = Layers::new().unwrap();
    let optimizer = optim::sgd(&model).lr(1.0);
    let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    accelerator.load_model(&model, golden("own_model/layers.safetensors")).unwrap();
    (accelerator, model, optimizer)
}

#[test]
fn layers_losses_and_gradients_are_those_of_torch() {
    let expected = json("own_model/layers.json");
    let (accelerator, model, optimizer) = layers(None);
    let ids = Tensor::from_slice(&ints(&expected["ids"]), [2, 4], accelerator.device()).unwrap();
    let labels = Tensor::from_slice(&ints(&expected["labels"]), [2, 4], accelerator.device()).unwrap();
    let logits = model.forward(&ids).unwrap();
    assert_close(&logits.to_vec::<f32>().unwrap(), &floats(&expected["logits"]), 2e-6, "logits");
    let loss = CrossEntropyLoss::default().forward(&logits, &labels).unwrap();
    let number = |name: &str| expected[name].as_f64().unwrap() as f32;
    assert_close(&[loss.item::<f32>().unwrap()], &[number("loss")], 1e-6, "loss");

    let flat = logits.detach().reshape([8, 5]).unwrap();
    let soft: Vec<f32> = (0..40).map(|i| (i as f32).cos()).collect();
    let soft = Tensor::from_slice(&soft, [8, 5], accelerator.device()).unwrap().softmax(-1).unwrap();
    let clamped: Vec<i32> = ints(&expected["labels"]).into_iter().map(|label| label.max(0)).collect();
    let clamped = Tensor::from_slice(&clamped, [8], accelerator.device()).unwrap();
    let sum = CrossEntropyLoss { ignore_index: 4, reduction: Reduction::Sum, ..CrossEntropyLoss::default() };
    for (name, loss) in [
        ("sum", sum.forward(&flat, &clamped)),
        ("mse", nn::mse_loss(&flat, &soft)),
        ("bce", nn::bce_with_logits(&flat, &soft)),
        ("kl", nn::kl_div(&flat.log_softmax(-1).unwrap(), &soft, KlTarget::Probs, KlReduction::BatchMean)),
    ] {
        assert_close(&[loss.unwrap().item::<f32>().unwrap()], &[number(name)], 5e-6, name);
    }

    // One step of SGD with a learning rate of 1 moves each weight by its gradient.
    let grads = expected["grads"].as_object().unwrap();
    let before: Vec<_> = grads.keys().map(|name| weight(&model, name)).collect();
    accelerator.backward(&loss).unwrap();
    optimizer.step().unwrap();
    for ((name, grad), before) in grads.iter().zip(before) {
        let moved: Vec<f32> =
            before.iter().zip(weight(&model, name)).map(|(before, after)| before - after).collect();
        assert_close(&moved, &floats(grad), 2e-6, name);
    }
}

#[test]
fn in_bf16_layers_convert_their_inputs_and_losses_are_f32() {
    let expected = json("own_model/layers.json");
    let (accelerator, model, _) = layers(Some(DType::BF16));
    let ids = Tensor::from_slice(&ints(&expected["ids"]), [2, 4], accelerator.device()).unwrap();
    let labels = Tensor::from_slice(&ints(&expected["labels"]), [2, 4], accelerator.device()).unwrap();
    let logits = model.forward(&ids).unwrap();
    assert_eq!(logits.dtype(), DType::BF16);
    let loss = nn::cross_entropy(&logits, &labels).unwrap();
    assert_eq!(loss.dtype(), DType::F32);
    assert!((loss.item::<f32>().unwrap() - expected["loss"].as_f64().unwrap() as f32).abs() < 0.02);
    accelerator.backward(&loss).unwrap();
}

/// Mean, deviation and largest absolute value.
fn statistics(values: &[f32]) -> [f32; 3] {
    let n = values.len() as f32;
    let mean = values.iter().sum::<f32>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / (n - 1.0);
    [mean, variance.sqrt(), largest_magnitude(values.iter().copied()).unwrap() as f32]
}

#[derive(Module)]
struct Big {
    linear: Linear,
    attn: MultiHeadAttention,
    embed: Embedding,
}

#[test]
fn layers_start_as_those_of_torch() {
    let accelerator = alone(&AcceleratorConfig::default());
    let model = Big {
        linear: Linear::new(64, 400).unwrap(),
        attn: MultiHeadAttention::new(64, 4).unwrap(),
        embed: Embedding::new(400, 64).unwrap(),
    };
    let model = accelerator.prepare(model).unwrap();
    for (name, expected) in json("own_model/layers.json")["start"].as_object().unwrap() {
        let values = weight(&**model.module(), name);
        let (got, want) = (statistics(&values), floats(expected));
        // Both are samples: their means differ by some deviations of a mean.
        let apart = 6.0 * want[1] / (values.len() as f32).sqrt() + 1e-9;
        let allowed = 0.1 * want[1] + 1e-9;
        assert!((got[0] - want[0]).abs() <= apart, "{name}: mean {got:?}, {want:?}");
        assert!((got[1] - want[1]).abs() <= allowed, "{name}: deviation {got:?}, {want:?}");
        // The ends of a uniform distribution are sharp, those of a normal one are not.
        let allowed = if name.starts_with("embed") { 1.0 } else { allowed };
        assert!((got[2] - want[2]).abs() <= allowed, "{name}: most {got:?}, {want:?}");
    }
}

#[derive(Module)]
struct Dropping {
    block: Unit<Sequential>,
    head: Linear,
}

impl Forward<Tensor> for Dropping {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let twice = self.block.call(x, |block, x| block.forward(x))?;
        self.head.forward(&self.block.call(&twice, |block, x| block.forward(x))?)
    }
}

fn losses_with_dropout(recompute: bool, seed: u64) -> Vec<f32> {
    let accelerator = alone(&AcceleratorConfig { seed: Some(seed), ..AcceleratorConfig::default() });
    let block =
        Sequential::new().add(Dropout::new(0.3)).add(Linear::new(16, 16).unwrap()).add(Dropout::new(0.1));
    let model = Dropping { block: Unit::new(block), head: Linear::new(16, 1).unwrap() };
    model.block.unit_run().set_recompute(recompute);
    let optimizer = optim::adamw(&model).lr(0.01);
    let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = Tensor::from_slice(&x, [4, 16], accelerator.device()).unwrap();
    let mut losses = Vec::new();
    for _ in 0..4 {
        // Two passes before their backward passes: each is computed again with its own masks.
        let first = model.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        let second = model.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        accelerator.backward(&first).unwrap();
        accelerator.backward(&second).unwrap();
        optimizer.step().unwrap();
        losses.extend([first.item::<f32>().unwrap(), second.item::<f32>().unwrap()]);
    }
    assert_ne!(losses[0], losses[1]);
    model.eval();
    assert_eq!(
        model.forward(&x).unwrap().to_vec::<f32>().unwrap(),
        model.forward(&x).unwrap().to_vec::<f32>().unwrap()
    );
    losses
}

#[test]
fn dropout_is_repeated_by_recomputation_and_by_a_second_run() {
    let losses = losses_with_dropout(false, 1);
    assert_eq!(losses_with_dropout(true, 1), losses);
    assert_ne!(losses_with_dropout(false, 2), losses);
}

/// `scale · x³`, with a backward pass of its own.
struct Cubic(Param);

impl CustomOp for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn forward(&self, inputs: &[Tensor]) -> nn::Result<Tensor> {
        inputs[0].powf(3.0)?.mul(&self.0.weight()?)
    }

    fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> nn::Result<Vec<Option<Tensor>>> {
        let x = &inputs[0];
        if let Some(mut slot) = self.0.grad()? {
            slot.put(&x.powf(3.0)?.mul(grad)?.sum(0)?)?;
        }
        Ok(vec![Some(x.square()?.scale(3.0)?.mul(&self.0.weight()?)?.mul(grad)?)])
    }

    fn params(&self) -> Vec<&Param> {
        vec![&self.0]
    }
}

#[derive(Module)]
struct Custom {
    up: Linear,
    scale: Param,
}

impl Forward<Tensor> for Custom {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        nn::custom(Cubic(self.scale.clone()), &[&self.up.forward(x)?])?.square()?.mean_all()
    }
}

#[test]
fn a_custom_op_with_a_parameter_trains_in_a_prepared_model() {
    let accelerator = alone(&AcceleratorConfig::default());
    let ones = nn::Init::Ones;
    let model = Custom { up: Linear::new(3, 4).unwrap(), scale: nn::param([4], ones).unwrap() };
    let optimizer = optim::sgd(&model).lr(1.0);
    let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    let x: Vec<f32> = (0..15).map(|i| (i as f32 * 1.3).sin()).collect();
    let x = Tensor::from_slice(&x, [5, 3], accelerator.device()).unwrap();
    let loss = model.forward(&x).unwrap();
    let before = (weight(&model, "scale"), weight(&model, "up.bias"));
    // The loss as a function of the scales and the bias, in f64, for its finite differences.
    let up = weight(&model, "up.weight");
    let xs = x.to_vec::<f32>().unwrap();
    let reference = |scale: &[f64], bias: &[f64]| -> f64 {
        let mut sum = 0.0;
        for row in xs.chunks(3) {
            for (o, w) in up.chunks(3).enumerate() {
                let h: f64 = w.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                sum += (scale[o] * (h + bias[o]).powi(3)).powi(2);
            }
        }
        sum / 20.0
    };
    let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| f64::from(x)).collect() };
    let (scale, bias) = (wide(&before.0), wide(&before.1));
    assert!((loss.item::<f64>().unwrap() - reference(&scale, &bias)).abs() < 1e-6);
    accelerator.backward(&loss).unwrap();
    optimizer.step().unwrap();
    let (scale_after, bias_after) = (weight(&model, "scale"), weight(&model, "up.bias"));
    let moved = |values: &[f64], index: usize, by: f64| {
        let mut values = values.to_vec();
        values[index] += by;
        values
    };
    for index in 0..4 {
        let h = 1e-5;
        let ds = (reference(&moved(&scale, index, h), &bias) - reference(&moved(&scale, index, -h), &bias))
            / (2.0 * h);
        let db = (reference(&scale, &moved(&bias, index, h)) - reference(&scale, &moved(&bias, index, -h)))
            / (2.0 * h);
        assert!((f64::from(before.0[index] - scale_after[index]) - ds).abs() < 1e-5, "scale {index}");
        assert!((f64::from(before.1[index] - bias_after[index]) - db).abs() < 1e-5, "bias {index}");
    }
}

#[test]
fn a_classifier_of_transformers_gives_the_same_logits_and_loss() {
    let accelerator = alone(&AcceleratorConfig::default());
    let folder = golden("own_model/classifier");
    let model = SequenceClassifier::new(&HfConfig::read(&folder).unwrap(), 16).unwrap();
    let optimizer = optim::sgd(&model).lr(0.1);
    let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    accelerator.load_model(&model, &folder).unwrap();
    let expected = json("own_model/classifier/expected.json");
    let labels = Tensor::from_slice(&ints(&expected["labels"]), [3], accelerator.device()).unwrap();
    let mut last = None;
    for side in ["right", "left"] {
        let expected = &expected[side];
        let ids = ints(&expected["ids"]);
        let mask: Vec<i32> = ids.iter().map(|&id| i32::from(id != 0)).collect();
        let tensor = |values: &[i32]| Tensor::from_slice(values, [3, 6], accelerator.device()).unwrap();
        let input = ClassifierInput {
            input_ids: tensor(&ids),
            attention_mask: Some(tensor(&mask)),
            labels: Some(labels.clone()),
        };
        let output = model.forward(&input).unwrap();
        let logits = output.logits.to_vec::<f32>().unwrap();
        assert_close(&logits, &floats(&expected["logits"]), 2e-5, side);
        let loss = output.loss.unwrap();
        assert_close(
            &[loss.item::<f32>().unwrap()],
            &[expected["loss"].as_f64().unwrap() as f32],
            2e-5,
            side,
        );
        last = Some((input, loss));
    }
    let (input, loss) = last.unwrap();
    accelerator.backward(&loss).unwrap();
    optimizer.step().unwrap();
    assert!(
        model.forward(&input).unwrap().loss.unwrap().item::<f32>().unwrap() < loss.item::<f32>().unwrap()
    );
}

#[test]
fn a_language_model_lends_a_classifier_its_body_and_what_is_missing_is_named() {
    let accelerator = alone(&AcceleratorConfig::default());
    let folder = golden("llama");
    let config = HfConfig::read(&folder).unwrap();
    let model = accelerator.prepare(SequenceClassifier::with_labels(&config, 4, 16).unwrap()).unwrap();
    let fresh = weight(&**model.module(), "score.weight");
    let found = accelerator.load_pretrained(&model, &folder).unwrap();
    assert_eq!(found.missing, ["score.weight"]);
    assert_eq!(found.unexpected, ["lm_head.weight"]);
    assert_eq!(weight(&**model.module(), "score.weight"), fresh);
    let refused = accelerator.load_model(&model, &folder).unwrap_err().to_string();
    assert!(refused.contains("lacks weights that the model asks for: score.weight; it holds weights that the model does not ask for: lm_head.weight"), "{refused}");
    let layers = golden("own_model/layers.safetensors");
    let nothing = accelerator.load_model_with(&model, layers, Strict::No).unwrap_err().to_string();
    assert!(nothing.contains("no weight of the model"), "{nothing}");
}

#[test]
fn a_file_that_one_rank_cannot_read_is_an_error_of_all() {
    let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
    let errors = oarlock_comm::shm::on_threads(2, |comm| {
        let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
        let model = accelerator.prepare(Layers::new().unwrap()).unwrap();
        let file = ["own_model/layers.safetensors", "own_model/none.safetensors"][comm.rank()];
        let before = weight(&**model.module(), "rms.weight");
        let error = accelerator.load_model(&model, golden(file)).unwrap_err().to_string();
        assert_eq!(weight(&**model.module(), "rms.weight"), before);
        error
    })
    .unwrap();
    assert!(errors[0].contains("another rank"), "{errors:?}");
    assert!(errors[1].contains("none.safetensors"), "{errors:?}");
}

#[derive(Module)]
struct Attending {
    attn: MultiHeadAttention,
}

impl Forward<Tensor> for Attending {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.attn.forward(x)
    }
}

#[test]
fn heads_that_share_keys_and_values_are_heads_with_equal_ones() {
    let (dim, n_heads, n_kv_heads, head_dim) = (16, 4, 2, 4);
    let accelerator = alone(&AcceleratorConfig::default());
    let attention = || MultiHeadAttention::new(dim, n_heads).unwrap().causal();
    let shared = accelerator.prepare(Attending { attn: attention().kv_heads(n_kv_heads).unwrap() }).unwrap();
    let whole = accelerator.prepare(Attending { attn: attention() }).unwrap();
    let of_shared = weight(&**shared.module(), "attn.in_proj_weight");
    assert_eq!(of_shared.len(), (dim + 2 * n_kv_heads * head_dim) * dim);
    let head = |first: usize| of_shared[first * dim..(first + head_dim) * dim].to_vec();
    let mut in_proj = of_shared[..dim * dim].to_vec();
    for part in [dim, dim + n_kv_heads * head_dim] {
        (0..n_heads).for_each(|h| in_proj.extend(head(part + h * n_kv_heads / n_heads * head_dim)));
    }
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let out = weight(&**shared.module(), "attn.out_proj.weight");
    let zeros = |n: usize| bytes(&vec![0.0; n]);
    let tensors = [
        ("attn.in_proj_weight", vec![3 * dim, dim], bytes(&in_proj)),
        ("attn.in_proj_bias", vec![3 * dim], zeros(3 * dim)),
        ("attn.out_proj.weight", vec![dim, dim], bytes(&out)),
        ("attn.out_proj.bias", vec![dim], zeros(dim)),
    ];
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("whole.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    accelerator.load_model(&whole, &file).unwrap();

    let x: Vec<f32> = (0..2 * 5 * dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
    let x = Tensor::from_slice(&x, [2, 5, dim], accelerator.device()).unwrap();
    let (got, want) = (shared.forward(&x).unwrap(), whole.forward(&x).unwrap());
    assert_eq!(got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    let error = attention().kv_heads(3).unwrap_err().to_string();
    assert!(error.contains("4 heads cannot share 3"), "{error}");
}
