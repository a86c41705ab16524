"""A report of gpu-check as a page: the machine, what failed, what to do next, training runs beside their peers, and ops beside
what the GPU can."""


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def machine(found):
    facts = found.get("facts", {})
    gpu, driver = facts.get("gpu", {}), facts.get("driver", {})
    return [
        f"- {gpu.get('name', 'no GPU')}, {gpu.get('memory_bytes', 0) / 2**30:.0f} GiB, "
        f"compute capability {gpu.get('compute_capability', '?')}",
        f"- driver {driver.get('version')}, CUDA {driver.get('cuda')}, NVRTC {facts.get('nvrtc')}, "
        f"cuBLASLt {facts.get('cublas_lt')}",
        f"- Oarlock {found.get('version')}{', quick' if found.get('quick') else ''}",
    ]


def sections(checks):
    lines = [row("section", "ok", "failed", "skipped", "seconds"), row("---", *["---:"] * 4)]
    for section in dict.fromkeys(check["section"] for check in checks):
        own = [check for check in checks if check["section"] == section]
        counts = [sum(check["result"] == result for check in own) for result in ("ok", "failed", "skipped")]
        lines.append(row(section, *counts, f"{sum(check['seconds'] for check in own):.1f}"))
    failed = [check for check in checks if check["result"] == "failed"]
    return lines + [""] * bool(failed) + [f"- FAILED {c['section']}: {c['name']}: {c['detail']}" for c in failed]


def trainings(checks):
    def of(section):
        measured = (check for check in checks if check["section"] == section and check["result"] == "ok")
        return {check["name"]: check["numbers"] for check in measured}

    ours, peers = of("throughput"), of("peers")
    if not ours:
        return []
    lines = [row("training", "tokens/s", "MFU", "GB", "predicted GB", "peer's tokens/s", "peer's GB", "speed", "memory"),
             row("---", *["---:"] * 8)]
    for name, numbers in ours.items():
        own = [f"{numbers['tokens_per_second']:.0f}", f"{100 * numbers['mfu']:.1f} %", f"{numbers['bytes'] / 1e9:.2f}"]
        own.append(f"{numbers['predicted_bytes'] / 1e9:.2f}")
        peer = peers.get(name)
        beside = ["", "", "", ""]
        if peer:
            beside = [
                f"{peer['tokens_per_second']:.0f}", f"{peer['bytes'] / 1e9:.2f}",
                f"{numbers['tokens_per_second'] / peer['tokens_per_second']:.2f}",
                f"{numbers['bytes'] / peer['bytes']:.2f}" if peer["bytes"] else "",
            ]
        lines.append(row(name, *own, *beside))
    return lines


def next_steps(found):
    steps = found.get("next", [])
    return ["What to do next:", "", *[f"{number}. {step}" for number, step in enumerate(steps, 1)]] if steps else []


def speeds(checks):
    measured = [c for c in checks if c["section"] in ("speed", "cudnn") and "milliseconds" in c["numbers"]]
    by = {"speed": "", "cudnn": " by cuDNN"}
    rows = [row(c["name"] + by[c["section"]], c["detail"]) for c in measured]
    return [row("op, forward and backward", "measured, of what the GPU can"), row("---", "---"), *rows] if rows else []


def dearest(found):
    """The dearest ops of each step, as gpu-check has set them."""
    lines = []
    for name, table in found.get("facts", {}).items():
        if name.startswith("dearest ops of "):
            lines += [f"{name[0].upper()}{name[1:]}:", "", "```text", *table, "```", ""]
    return lines[:-1]


def table(found):
    if "error" in found:
        return f"{found['error']}\n"
    checks = found["checks"]
    parts = [["# GPU check", ""] + machine(found), next_steps(found), sections(checks), trainings(checks), speeds(checks)]
    parts.append(dearest(found))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
