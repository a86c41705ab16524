# The formula of Homebrew on Linux. A release fills in the address of its source and its checksum (RELEASING.md).
class Oarlock < Formula
  desc "Trains language models on many processes from one program"
  homepage "@HOMEPAGE@"
  url "@SOURCE@"
  sha256 "@SHA256@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/cli")
    generate_completions_from_executable(bin/"oarlock", "completions", shells: [:bash, :zsh, :fish])
    system bin/"oarlock", "man", buildpath/"man1"
    man1.install Dir["man1/*.1"]
  end

  test do
    system bin/"oarlock", "init", "pretrain", testpath/"run"
    cd "run" do
      system bin/"oarlock", "train", "recipes/pretrain.yaml", "max_steps=2", "eval_strategy=no"
      assert_path_exists "out/pretrain/model.safetensors"
    end
  end
end
