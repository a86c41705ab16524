//! Layers that make images larger, and activations, compared with torch's.

use oarlock::nn::{
    self, Conv2d, ConvTranspose1d, ConvTranspose2d, Elu, Flatten, Forward, Glu, Hardsigmoid, Hardswish,
    Hardtanh, Interpolation, Layer, LeakyRelu, LogSigmoid, LogSoftmax, Mish, Module, PRelu, PixelShuffle,
    PixelUnshuffle, Relu6, Selu, Sequential, Softmax, Softplus, Softsign, Unflatten, Unit, Upsample,
};
use oarlock::optim;
use oarlock::{Accelerator, AcceleratorConfig, DType, Device, Prepared, Result, Tensor};

use crate::layers::{assert_close, expected, floats, golden, wave};

#[derive(Module)]
struct Model {
    net: Unit<Sequential>,
    lines: Unit<Sequential>,
}

impl Model {
    fn new() -> nn::Result<Model> {
        Ok(Model {
            net: Unit::new(
                Sequential::new()
                    .add(ConvTranspose2d::new(3, 4, 3)?.stride(2).padding(1).output_padding(1))
                    .add(PRelu::new(4)?)
                    .add(Upsample::scale_factor(2).mode(Interpolation::Linear { align_corners: false }))
                    .add(Conv2d::new(4, 8, 3)?)
                    .add(PixelShuffle { upscale_factor: 2 })
                    .add(Mish)
                    .add(ConvTranspose2d::new(2, 4, (1, 3))?.dilation((1, 2)).groups(2)?.no_bias())
                    .add(PixelUnshuffle { downscale_factor: 2 }),
            ),
            lines: Unit::new(
                Sequential::new()
                    .add(ConvTranspose1d::new(3, 4, 4)?.stride(2).padding(1))
                    .add(PRelu::new(1)?)
                    .add(Upsample::size(&[9]))
                    .add(Glu { dim: 1 })
                    .add(Unflatten { dim: 1, sizes: vec![2, -1] })
                    .add(Flatten { start_dim: 1, end_dim: Some(2) })
                    .add(Softmax { dim: 1 }),
            ),
        })
    }
}

impl Forward<[Tensor; 2]> for Model {
    type Output = [Tensor; 2];
    fn forward(&self, [images, lines]: &[Tensor; 2]) -> nn::Result<[Tensor; 2]> {
        Ok([self.net.forward(images)?, self.lines.forward(lines)?])
    }
}

fn weights(accelerator: &Accelerator, model: &Prepared<Model>) -> Vec<(String, Vec<f32>)> {
    let weights = accelerator.get_state_dict(model).unwrap();
    weights.into_iter().map(|(name, weight)| (name, weight.to_vec::<f32>().unwrap())).collect()
}

fn alone(config: AcceleratorConfig) -> Accelerator {
    let config = AcceleratorConfig { threads: Some(1), ..config };
    Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap()
}

/// The outputs, and what a step of SGD with a learning rate of 1 takes from each weight.
type Run = (Vec<Vec<f32>>, Vec<(String, Vec<f32>)>);

fn run(accelerator: &Accelerator) -> Result<Run> {
    let model = Model::new()?;
    let optimizer = optim::sgd(&model).lr(1.0);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    accelerator.load_model(&model, golden("images.safetensors"))?;
    let before = weights(accelerator, &model);
    let device = accelerator.device();
    let outputs = model.forward(&[wave(device, &[1, 3, 2, 2], 0.7), wave(device, &[2, 3, 5], 0.7)])?;
    let loss = outputs[0].square()?.mean_all()?.add(&outputs[1].square()?.mean_all()?)?;
    accelerator.backward(&loss)?;
    optimizer.step()?;
    let moved = before.into_iter().zip(weights(accelerator, &model)).map(|((name, before), (_, after))| {
        (name, before.iter().zip(&after).map(|(before, after)| before - after).collect())
    });
    let outputs = outputs.iter().map(|output| output.to_vec::<f32>()).collect::<nn::Result<_>>()?;
    Ok((outputs, moved.collect()))
}

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let expected = expected("images.json");
    let (outputs, moved) = run(&alone(AcceleratorConfig::default())).unwrap();
    for (name, output) in ["net", "lines"].iter().zip(&outputs) {
        assert_close(output, &floats(&expected["outputs"][name]), 1e-6, name);
    }
    let grads = expected["grads"].as_object().unwrap();
    assert_eq!(grads.len(), moved.len());
    for (name, moved) in &moved {
        assert_close(moved, &floats(&grads[name]), 1e-6, name);
    }
    let bf16 = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..AcceleratorConfig::default() };
    for (name, output) in ["net", "lines"].iter().zip(&run(&alone(bf16)).unwrap().0) {
        assert_close(output, &floats(&expected["outputs"][name]), 0.02, name);
    }
}

#[test]
fn activations_are_those_of_torch() {
    let expected = &expected("images.json")["activations"];
    let x = wave(&Device::default(), &[4, 6], 0.7).scale(4.0).unwrap();
    let layers: [(&str, Box<dyn Layer>); 14] = [
        ("leaky relu", Box::new(LeakyRelu { negative_slope: 0.2 })),
        ("elu", Box::new(Elu { alpha: 0.7 })),
        ("softplus", Box::new(Softplus { beta: 2.0, threshold: 3.0 })),
        ("hardtanh", Box::new(Hardtanh { min_val: -0.5, max_val: 2.0 })),
        ("relu6", Box::new(Relu6)),
        ("selu", Box::new(Selu)),
        ("mish", Box::new(Mish)),
        ("hardsigmoid", Box::new(Hardsigmoid)),
        ("hardswish", Box::new(Hardswish)),
        ("log sigmoid", Box::new(LogSigmoid)),
        ("softsign", Box::new(Softsign)),
        ("glu", Box::new(Glu { dim: 0 })),
        ("softmax", Box::new(Softmax { dim: 0 })),
        ("log softmax", Box::new(LogSoftmax { dim: -2 })),
    ];
    assert_eq!(expected.as_object().unwrap().len(), layers.len());
    for (name, layer) in &layers {
        assert_close(
            &layer.forward(&x).unwrap().to_vec::<f32>().unwrap(),
            &floats(&expected[name]),
            2e-6,
            name,
        );
    }
}

#[test]
fn misuse_is_named() {
    let x = wave(&Device::default(), &[4, 6], 0.7);
    let text = |layer: &dyn Layer| layer.forward(&x).unwrap_err().to_string();
    assert_eq!(text(&Upsample::scale_factor(2)), "Upsample: expected x of shape [N, C, ..], got [4, 6]");
    assert_eq!(
        text(&Upsample::size(&[2, 3])),
        "Upsample: expected x of shape [N, C, ..] with 2 dims after the channels, got [4, 6]"
    );
    let error = ConvTranspose2d::new(4, 6, 3).unwrap().groups(4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ConvTranspose2d: 4 channels and 6 outputs cannot be divided into 4 groups"
    );
    let accelerator = alone(AcceleratorConfig::default());
    let model = PRelu::new(3).unwrap();
    let optimizer = optim::sgd(&model);
    let (model, _optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    let text = model.forward(&x).unwrap_err().to_string();
    assert!(text.contains("PRelu: expected x of shape [N, 3, ..], got [4, 6]"), "{text}");
}
