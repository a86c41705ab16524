"""Writes crates/oarlock/tests/golden/zero_grad.json: what Accelerate's `zero_grad` makes of loops that accumulate.

    python make_zero_grad.py crates/oarlock/tests/golden/zero_grad.json

loops   one model, SGD with momentum; `zero_grad` stands at a `place`, a window has `steps` micro-batches, and the last one
        is short. `deepspeed` says whether a DeepSpeed plugin (stage 0) prepared it, whose `zero_grad` does nothing.
gans    a generator and a discriminator with SGD. "phases": each has a window of its own, and the discriminator's
        `zero_grad` drops what the generator's window left. "interleaved": both in each micro-batch.

Weights are those after the last step. Micro-batches have two rows, so that two ranks can have one each.
"""
import json, math, multiprocessing, os, sys

PLACES = ["top", "before_backward", "before_step", "after"]
N_MICRO_BATCHES = 10


def rows(seed, columns):
    import torch
    return torch.tensor([[math.sin(1 + seed * 7 + i * 3 + j * 5) for j in range(columns)] for i in range(2)])


def linear(columns, outputs, seed):
    import torch
    layer = torch.nn.Linear(columns, outputs, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(
            [[math.cos(seed + i * 3 + j * 2) / 2 for j in range(columns)] for i in range(outputs)]))
    return layer


def loader():
    import torch
    micro_batches = list(range(N_MICRO_BATCHES))
    return torch.utils.data.DataLoader(micro_batches, batch_size=1)


def loop(steps, place, deepspeed):
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": steps, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": 0}, "zero_allow_untested_optimizer": True}
    plugin = DeepSpeedPlugin(hf_ds_config=config) if deepspeed else None
    accelerator = Accelerator(cpu=not deepspeed, gradient_accumulation_steps=steps, deepspeed_plugin=plugin)
    net = linear(3, 2, 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    net, optimizer, batches = accelerator.prepare(net, optimizer, loader())
    assert ("DeepSpeed" in type(net).__name__) == deepspeed, type(net)
    for batch in batches:
        with accelerator.accumulate(net):
            if place == "top":
                optimizer.zero_grad()
            loss = (net(rows(int(batch[0]), 3)) - rows(int(batch[0]) + 50, 2)).square().mean()
            if place == "before_backward":
                optimizer.zero_grad()
            accelerator.backward(loss)
            if place == "before_step":
                optimizer.zero_grad()
            optimizer.step()
            if place == "after":
                optimizer.zero_grad()
    return accelerator.unwrap_model(net).weight.flatten().tolist()


def gan(steps, kind):
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    generator, discriminator = linear(2, 3, 1), linear(3, 1, 2)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_discriminator = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    generator, discriminator, of_generator, of_discriminator = accelerator.prepare(
        generator, discriminator, of_generator, of_discriminator)

    def discriminate(index):
        fake = discriminator(generator(rows(index, 2)).detach())
        accelerator.backward((discriminator(rows(index + 50, 3)) - 1).square().mean() + fake.square().mean())
        of_discriminator.step()
        of_discriminator.zero_grad()

    def generate(index):
        accelerator.backward((discriminator(generator(rows(index, 2))) - 1).square().mean())
        of_generator.step()
        of_generator.zero_grad()
        of_discriminator.zero_grad()

    for step in range(3):
        window = range(step * steps, (step + 1) * steps)
        turns = [[discriminate], [generate]] if kind == "phases" else [[discriminate, generate]]
        for turn in turns:
            for index in window:
                with accelerator.accumulate(generator, discriminator):
                    for part in turn:
                        part(index)
    return {"generator": generator.weight.flatten().tolist(), "discriminator": discriminator.weight.flatten().tolist()}


def answer(task):
    make, *arguments = task
    if make is loop and arguments[-1]:
        os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT="29733", RANK="0", LOCAL_RANK="0",
                          WORLD_SIZE="1")
        import deepspeed.comm.torch
        # An op that it would compile at the start, to reduce faster on one machine.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    return make(*arguments)


def main(path):
    import accelerate  # Once, for all that follows.
    everything = [(gan, steps, kind) for steps in (1, 2, 4) for kind in ("phases", "interleaved")]
    everything += [(loop, steps, place, deepspeed) for deepspeed in (False, True) for steps in (1, 2, 4) for place in PLACES]
    # Each in a process of its own: what Accelerate knows of accumulation and plugins is one state of the process.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = list(zip(everything, pool.imap(answer, everything, chunksize=1)))
    gans = [{"steps": task[1], "kind": task[2], **weights} for task, weights in answers if task[0] is gan]
    loops = [{"steps": task[1], "place": task[2], "deepspeed": task[3], "weights": weights}
             for task, weights in answers if task[0] is loop]
    lines = ",\n".join
    with open(path, "w") as file:
        file.write('{"loops": [\n' + lines(map(json.dumps, loops)) + '\n], "gans": [\n' + lines(map(json.dumps, gans))
                   + "\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
