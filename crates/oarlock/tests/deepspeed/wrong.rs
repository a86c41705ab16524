//! Wrong programs and their messages.

use oarlock::deepspeed::{self, InitializeArgs, zero};
use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::{AcceleratorConfig, DType, DummyOptim, Result, Tensor, optim};
use serde_json::json;

use super::deepspeed_loop::Net;
use super::{config, ds_config, engine, plugins, solo};

/// What is said of a wrong program on one rank.
fn message(program: impl FnOnce() -> Result<()>) -> String {
    program().unwrap_err().to_string()
}

#[test]
fn wrong_programs_are_told_what_to_do() {
    let two = || plugins(&[("student", ds_config(2)), ("teacher", ds_config(3))]);
    let plain = || solo(AcceleratorConfig::default());
    let cases: Vec<(&str, String)> = vec![
        (
            "no DeepSpeed plugin is named \"techer\"; did you mean \"teacher\"?",
            message(|| solo(two())?.select_deepspeed_plugin("techer")),
        ),
        ("no DeepSpeed plugin is active", message(|| plain()?.get_active_deepspeed_plugin().map(|_| ()))),
        ("shares the plugins of the first", message(|| solo(two())?.another_with(&two()).map(|_| ()))),
        (
            "zero stage 2 requires an optimizer, and the model Net comes without one",
            message(|| solo(two())?.prepare(Net::new()?).map(|_| ())),
        ),
        (
            "gradient_accumulation_steps is 4 for the model Net, and 2 for Net, which this accelerator trains too",
            message(|| {
                let windows = |n: usize| {
                    let mut value = ds_config(2);
                    value["gradient_accumulation_steps"] = json!(n);
                    value
                };
                let accelerator = solo(plugins(&[("first", windows(2)), ("second", windows(4))]))?;
                let [first, second] = [Net::new()?, Net::new()?];
                let [of_first, of_second] = [DummyOptim::new(&first), DummyOptim::new(&second)];
                let _first = accelerator.prepare((first, of_first))?;
                accelerator.select_deepspeed_plugin("second")?;
                accelerator.prepare((second, of_second)).map(|_| ())
            }),
        ),
        (
            "an optimizer stands both in the code and in the DeepSpeed plugin \"student\"",
            message(|| {
                let net = Net::new()?;
                let optimizer = optim::adamw(&net);
                solo(two())?.prepare((net, optimizer)).map(|_| ())
            }),
        ),
        (
            "a DummyOptim stands for the optimizer of a DeepSpeed plugin, and the accelerator has none",
            message(|| {
                let net = Net::new()?;
                let optimizer = DummyOptim::new(&net);
                plain()?.prepare((net, optimizer)).map(|_| ())
            }),
        ),
        (
            "says neither `train_batch_size` nor `train_micro_batch_size_per_gpu`",
            message(|| {
                solo(plugins(&[("t", json!({ "zero_optimization": { "stage": 3 } }))]))?
                    .prepare(Net::new()?)
                    .map(|_| ())
            }),
        ),
        (
            "mixed_precision is bf16, and the DeepSpeed plugin \"t\" sets fp16.enabled",
            message(|| {
                let mut value = ds_config(3);
                value["fp16"] = json!({ "enabled": true });
                let settings =
                    AcceleratorConfig { mixed_precision: Some(DType::BF16), ..plugins(&[("t", value)]) };
                solo(settings)?.prepare(Net::new()?).map(|_| ())
            }),
        ),
        (
            "of the model's hidden size h, and the model does not say one",
            message(|| {
                let mut value = ds_config(3);
                value["zero_optimization"]["reduce_bucket_size"] = json!("auto");
                engine(&plain()?, &value).map(|_| ())
            }),
        ),
        (
            "`optimizer.params.lr` is \"auto\", and nothing here says what it is",
            message(|| {
                let mut value = ds_config(3);
                value["optimizer"]["params"]["lr"] = json!("auto");
                engine(&plain()?, &value).map(|_| ())
            }),
        ),
        (
            "the loss comes from the model Net, which another accelerator prepared",
            message(|| {
                let accelerator = plain()?;
                let (first, second) =
                    (engine(&accelerator, &ds_config(1))?, engine(&accelerator, &ds_config(1))?);
                let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], first.device())?;
                second.backward(&first.forward(&x)?.mean_all()?)
            }),
        ),
        (
            "prepared already, or shares parameters with one that is",
            message(|| {
                let accelerator = plain()?;
                let head = Linear::normal(4, 1, true, 0.3)?;
                let shared = Shared { head: Linear::with_weight(head.weight.clone()) };
                let args = InitializeArgs {
                    accelerator: Some(accelerator.clone()),
                    ..InitializeArgs::new(head, config(&ds_config(1)))
                };
                let (_first, ()) = deepspeed::initialize(args)?;
                let args = InitializeArgs {
                    accelerator: Some(accelerator),
                    ..InitializeArgs::new(shared, config(&ds_config(1)))
                };
                deepspeed::initialize(args).map(|_| ())
            }),
        ),
        (
            "no_sync does not go with stage 2",
            message(|| engine(&plain()?, &ds_config(2))?.no_sync(|| Ok(()))),
        ),
        (
            "step: the engine of Net has no optimizer",
            message(|| {
                let value = json!({ "train_batch_size": 1, "zero_optimization": { "stage": 3 } });
                engine(&plain()?, &value)?.step().map(|_| ())
            }),
        ),
        (
            "\"up.weight\" is of no prepared model",
            message(|| {
                let engine = engine(&plain()?, &ds_config(2))?;
                zero::gathered_parameters(engine.model(), &Net::new()?, None, |_| Ok(()))
            }),
        ),
        (
            "modifier_rank is 3, and there are 1 ranks",
            message(|| {
                let engine = engine(&plain()?, &ds_config(2))?;
                zero::gathered_parameters(engine.model(), engine.module(), Some(3), |_| Ok(()))
            }),
        ),
        (
            "the configuration's stage is 2, and only stage 3 divides parameters",
            message(|| zero::init(&config(&ds_config(2)), || Linear::normal(4, 1, true, 0.3)).map(|_| ())),
        ),
    ];
    for (expected, message) in cases {
        assert!(message.contains(expected), "{expected}\n{message}");
    }
}

#[derive(Module)]
struct Shared {
    head: Linear,
}

impl Forward<Tensor> for Shared {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.head.forward(x)
    }
}
