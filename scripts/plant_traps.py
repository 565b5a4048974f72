#!/usr/bin/env python3
"""Plants each trap of docs/traps.md in a copy of the tree and shows that its test fails.

    scripts/plant_traps.py [--build build/planted] [N ..]
    scripts/plant_traps.py --check       # only whether every edit still finds its place, and docs/traps.md its test

A test that cannot fail proves nothing. For every trap below the copy is edited, the test's program rebuilt and the test
run: it must fail. Then the edit is undone. Exit 0: every test failed as it should (and passed without a trap); 1: a test
slept, or the text that an edit looks for is gone, which means that this list has to follow the code. About half a minute a
trap on two cores; part of scripts/nightly.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORWARD, WEIGHTS, CONFIG = "engine/forward.cpp", "engine/weights.cpp", "engine/model_config.cpp"
TOKENIZER, CHAT, GGUF = "engine/tokenizer.cpp", "engine/chat_template.cpp", "engine/gguf.cpp"
POINTWISE, ROWS, STEPS = "kernels/pointwise/pointwise.cpp", "kernels/pointwise/rows.inc", "kernels/pointwise/steps.cpp"
OPS, ROUTER = "engine/model_ops.h", "kernels/base/route.cpp"
ATTEND, EXPERTS = "kernels/base/attend.h", "kernels/base/expert_ffn.cpp"

# trap: (program, test, file, [(text, replacement), ..])
TRAPS = {
    1: ("engine_traps_test", "Traps.NormsMultiplyByThePlainWeight", ROWS,
        [("mul(v, next(w + i, n - i))", "mul(v, add(set1(1.0F), next(w + i, n - i)))")]),
    2: ("engine_traps_test", "Traps.ScoresAreNotDividedBySqrtOfTheHead", ATTEND,
        [("const float s = tree16(chain);", "const float s = tree16(chain) / std::sqrt(static_cast<float>(head_dim));")]),
    3: ("engine_traps_test", "Traps.ValuesHaveUnitMeanSquareInEveryLayer", STEPS,
        [("rms_norm(s.v.base + t * s.v.stride + at, nullptr, hd, s.eps, head)", "rms_norm(s.v.base + t * s.v.stride + at, s.k_norm, hd, s.eps, head)")]),
    4: ("engine_traps_test", "Traps.ValuesOfAGlobalLayerAreKeysBeforeTheirNormAndRotation", STEPS,
        [("rms_norm(s.v.base + t * s.v.stride + at, nullptr, hd, s.eps, head);",
          "rms_norm(s.v.base + t * s.v.stride + at, nullptr, hd, s.eps, head);\n      if (s.v.base == s.k.base) rope(head, hd, c, sine);")]),
    5: ("engine_traps_test", "Traps.ValuesOfAGlobalLayerAreKeysBeforeTheirNormAndRotation", STEPS,
        [("store_kv(head, hd, advance(s.k_out, row * kv_width + at));",
          "store_kv(head, hd, advance(s.k_out, row * kv_width + at));\n"
          "      if (s.v.base == s.k.base) store_kv(head, hd, advance(s.v_out, row * kv_width + at));")]),
    6: ("engine_traps_test", "Traps.TheRouterSeesNeitherTheExpertsNormNorTheDenseOne", STEPS,
        [("scale_row(h, r, s.router_scale, n, s.router + at);",
          "scale_row(h, r, s.router_scale, n, s.router + at);\n    scale_row(s.router + at, 1.0F, s.expert_norm, n, s.router + at);")]),
    7: ("engine_traps_test", "Traps.TheRoutersInputIsDividedBySqrtOfHiddenOnce", WEIGHTS,
        [("1.0F / std::sqrt(static_cast<float>(config_.hidden))", "1.0F / static_cast<float>(config_.hidden)")]),
    8: ("engine_traps_test", "Traps.OneScaleIsPerInputAndTheOtherPerExpert", ROUTER,
        [("weights[i] / sum * scale[ids[i]]", "weights[i] / sum * scale[i]")]),
    9: ("engine_traps_test", "Traps.ChosenWeightsSumToOneBeforeTheExpertScaleAndNotAfter", ROUTER,
        [("weights[i] = exp_fixed(logits[ids[i]] - maximum);",
          "weights[i] = exp_fixed(logits[ids[i]] - maximum) * scale[ids[i]];"),
         ("weights[i] / sum * scale[ids[i]]", "weights[i] / sum")]),
    10: ("engine_traps_test", "Traps.ChosenWeightsSumToOneBeforeTheExpertScaleAndNotAfter", ROUTER,
         [("float sum = 0.0F;", "float sum = 0.0F;\n  for (int e = 0; e < experts; ++e) sum += exp_fixed(logits[e] - maximum);"),
          ("    sum += weights[i];\n", "")]),
    11: ("engine_traps_test", "Traps.TheRoutedBranchDoesNotSeeTheDenseOne", FORWARD,
         [("    experts(w);\n", "    pointwise::add(b.m.x, b.branch, tokens * d, b.m.x);\n    experts(w);\n")]),
    12: ("engine_traps_test", "Traps.TheSumOfBothBranchesIsNormed", STEPS,
         [("    rms_norm(dense, s.norm, n, s.eps, dense);\n", "")]),
    13: ("engine_traps_test", "Traps.TheLayerScaleMultipliesResidualAndUpdate", STEPS,
         [("add_scaled(s.h + at, dense, s.layer_scale, n, s.x + at);",
           "for (std::size_t i = 0; i < z(n); ++i) s.x[at + i] = s.h[at + i] + dense[i] * s.layer_scale;")]),
    14: ("engine_traps_test", "Traps.GateIsTheFirstHalfOfTheFusedTensor", EXPERTS,
         [("const auto gate = c.gate_rows(e);\n        const auto up = c.up_rows(e);",
           "const auto gate = c.up_rows(e);\n        const auto up = c.gate_rows(e);")]),
    15: ("base_test", "FixedMath.GeluIsTheTanhFormAndNeitherErfNorSilu", "kernels/base/fixed_math.h",
         [("return z / (1.0F + exp_fixed((z * fixed_math::kGeluOuter) * t));",
           "return z / (1.0F + exp_fixed(0.0F * t - z));")]),
    16: ("engine_traps_test", "Traps.KeysAreRotatedByTheirLayersOwnRule", POINTWISE,
         [("std::pow(base, -2.0 * i / head_dim)", "std::pow(base, -2.0 * i / (factors != nullptr ? head_dim / 4 : head_dim))")]),
    17: ("engine_traps_test", "Traps.KeysAreRotatedByTheirLayersOwnRule", ROWS,
         [("  for (int i = 0; i < half; i += 16) {\n    const F a",
           "  for (int i = 0; i < half; ++i) {\n"
           "    const float one = x[2 * i];\n    const float other = x[2 * i + 1];\n"
           "    x[2 * i] = one * cosine[i] - other * sine[i];\n    x[2 * i + 1] = other * cosine[i] + one * sine[i];\n  }\n"
           "  for (int i = half; i < half; i += 16) {\n    const F a")]),
    18: ("engine_traps_test", "Traps.KeysAreRotatedByTheirLayersOwnRule", WEIGHTS,
         [("table.factors ? factors.data() : nullptr", "nullptr")]),
    19: ("engine_traps_test", "Traps.KeysAreRotatedByTheirLayersOwnRule", CONFIG,
         [("l.is_local ? local_base : global_base", "l.is_local ? global_base : local_base")]),
    20: ("engine_traps_test", "Traps.AWindowOfEightSeesTheTokenAndSevenBeforeIt", "kernels/attention_prefill/op.h",
         [("position + 1 - s.window : 0", "position - s.window : 0")]),
    21: ("engine_golden_test", "Forward.NoCutIntoChunksAndNoThreadCountChangesABit", FORWARD,
         [("      const auto shape = prefill_shape(w, tokens,",
           "      cache.commit(layer, position, tokens, fresh(b.k_fresh), fresh(b.v_fresh));\n      const auto shape = prefill_shape(w, tokens,")]),
    22: ("engine_traps_test", "Traps.KvHeadsAndHeadSizesAreReadPerLayer", CONFIG,
         [("l.kv_heads = kv_heads[at];", "l.kv_heads = kv_heads[0];")]),
    23: ("engine_traps_test", "Traps.ConsecutiveQueryHeadsShareAKvHead", "kernels/attention_decode/heads.h",
         [("kv_head * hd,", "h % static_cast<std::size_t>(s.kv_heads) * hd,")]),
    24: ("engine_traps_test", "Traps.TheEmbeddingIsScaledBySqrtOfHidden", FORWARD,
         [("std::sqrt(static_cast<float>(d)), b.x", "static_cast<float>(d) / static_cast<float>(d), b.x")]),
    25: ("engine_traps_test", "Traps.LogitsAreCappedAfterTheHead", ROWS,
         [("mul(c, tanh_lanes(div(next(l + i, n - i), c)))", "add(next(l + i, n - i), mul(zero(), c))")]),
    26: ("engine_traps_test", "Traps.AQ4BlockHoldsElementsJAndJPlus16InOneByte", "kernels/base/blocks.cpp",
         [("return j < 16 ? u8(qs + j) & 15 : u8(qs + j - 16) >> 4;", "return j % 2 == 0 ? u8(qs + j / 2) & 15 : u8(qs + j / 2) >> 4;")]),
    27: ("engine_make_model_test", "MakeModel.EveryTypeOfTheSpecPresetOpensAndIsFinite", GGUF,
         [("const auto type = block_type_from_id(id);",
           "auto type = block_type_from_id(id);\n    if (id == 6) type.reset();  // Q5_0")]),
    28: ("engine_chat_template_test", "EncodeChat.HasExactlyOneBos", CHAT,
         [('  pieces.front().text.erase(0, std::string_view("<bos>").size());\n', "")]),
    29: ("engine_tokenizer_test", "Tokenizer.StopsAtTurnEndsByText", TOKENIZER,
         [('{"<eos>", "<turn|>", "<|tool_response>"}', '{"<eos>"}')]),
    30: ("engine_tokenizer_test", "Tokenizer.GivesTheStoredIdsOfAllGoldenCases", TOKENIZER,
         [("void Tokenizer::encode_raw(std::string_view raw, std::vector<TokenId>& out) const {\n",
           "void Tokenizer::encode_raw(std::string_view raw, std::vector<TokenId>& out) const {\n"
           "  const std::string spaced = raw.empty() ? std::string() : ' ' + std::string(raw);\n  raw = spaced;\n")]),
    32: ("engine_chat_template_test", "EncodeChat.TextOfTheRequestCannotNameATurnOrACall", CHAT,
         [("p.trusted ? SpecialMode::kAll : SpecialMode::kNone", "SpecialMode::kAll")]),
    33: ("engine_chat_template_test", "ChatTemplate.ExampleAOneUserMessageThinkingOff", CHAT,
         [('      if (!request_.thinking) own("<|channel>thought\\n<channel|>");\n', "")]),
    34: ("engine_chat_template_test", "ChatTemplate.ExampleCToolRoundTripLeavesTheTurnOpen", CHAT,
         [("last_ == Last::kToolResponse && text_after_response_", "last_ == Last::kToolResponse")]),
    31: ("engine_traps_test", "Traps.AMergeMustJoinTwoTokensIntoAToken", TOKENIZER,
         [("if (!left || !right || !result) {", "if (!result) continue;\n    if (!left || !right) {")]),
    35: ("engine_snapshot_test", "Snapshots.RandomConversationsAlwaysGiveTheBitsOfAColdRun", "engine/prefix_store.cpp",
         [("std::min(static_cast<int>(common_prefix(entry->ids, prompt)), most)", "std::min(static_cast<int>(entry->ids.size()), most)")]),
    36: ("engine_traps_test", "Traps.TheRouterChoosesWhatDoublePrecisionChooses", STEPS,
         [("scale_row(h, r, s.router_scale, n, s.router + at);",
           "scale_row(h, r, s.router_scale, n, s.router + at);\n"
           "    for (std::size_t i = 0; i < z(n); ++i) {\n"
           "      float& x = s.router[at + i];\n"
           "      x = half_to_float(float_to_half(x));\n"
           "    }")]),
    37: ("engine_golden_test", "Golden.StagesOfLayers0And5Match", FORWARD,
         [("      const auto shape = prefill_shape(w, tokens, position, slots, cache.type());",
           "      auto shape = prefill_shape(w, tokens, position, slots, cache.type());\n"
           "      shape.kv_heads = weights.attention()[0].kv_heads;\n      shape.head_dim = weights.attention()[0].head_dim;")]),
    38: ("engine_golden_test", "Golden.LogitsOfAllSequencesMatchInOneBatch", "engine/activations.cpp",
         [("q = std::max(q, l.q_width());", "q = c.layer[0].q_width();")]),
    39: ("engine_golden_test", "Golden.TokenByTokenGivesTheBitsOfTheBatch", OPS,
         [("std::min(position + 1, w.window) : position + 1", "std::min(position + 1, w.window - 1) : position + 1")]),
}


def missing(number, text):
    """The places in a file's text that a trap's edits look for in vain."""
    return [place for place, _ in TRAPS[number][3] if place not in text]


def check():
    rows = {int(m[1]): m[0] for m in re.finditer(r"^\| (\d+) \|.*$", (ROOT / "docs/traps.md").read_text(), re.M)}
    faults = [f"{n}: docs/traps.md and this list do not both have it" for n in rows.keys() ^ TRAPS.keys()]
    for number, (_, test, name, _) in TRAPS.items():
        faults += [f"{number}: {name} has no longer {place!r}" for place in missing(number, (ROOT / name).read_text())]
        if f"`{test}`" not in rows.get(number, ""):
            faults.append(f"{number}: docs/traps.md does not name {test}")
    for fault in faults:
        print("plant_traps:", fault)
    print(f"plant_traps: {len(TRAPS)} traps, {len(faults)} faults")
    return 1 if faults else 0


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def refresh(tree):
    """Makes the copy's files equal to this tree's, ignored ones aside; what is equal stays, so that little is rebuilt."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        source, goal = ROOT / name, tree / name
        if not source.exists():
            continue
        if not goal.exists() or goal.read_bytes() != source.read_bytes():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, goal)


def test_fails(build, program, test):
    made = run(["cmake", "--build", build, "--target", program, "-j", str(os.cpu_count())])
    if made.returncode != 0:
        return None, (made.stdout + made.stderr)[-2000:]
    ran = run([f"{build}/bin/{program}", f"--gtest_filter={test}", "--gtest_brief=1"], timeout=600)
    if ran.returncode == 0 and "[  PASSED  ] 0 tests" in ran.stdout:
        return None, f"{program} has no test named {test}"
    return ran.returncode != 0, ran.stdout[-600:]


def main():
    parser = argparse.ArgumentParser(description="plant each trap and watch its test fail")
    parser.add_argument("--build", default="build/planted", help="folder for the copy and its build")
    parser.add_argument("--check", action="store_true", help="only whether the edits find their places")
    parser.add_argument("traps", nargs="*", type=int, help="these only")
    args = parser.parse_args()
    if args.check:
        return check()
    unknown = [n for n in args.traps if n not in TRAPS]
    if unknown:
        sys.exit(f"plant_traps: no plant for {unknown}")
    tree = (ROOT / args.build / "tree").resolve()
    build = str(tree / "build/host")
    tree.mkdir(parents=True, exist_ok=True)
    refresh(tree)
    configured = run(["cmake", "--preset", "host", f"-DPython3_EXECUTABLE={sys.executable}"], cwd=tree)
    if configured.returncode != 0:
        sys.exit(configured.stderr)

    wrong = []
    clean = {}
    for number in args.traps or sorted(TRAPS):
        program, test, name, edits = TRAPS[number]
        path = tree / name
        original = path.read_text()
        if test not in clean:
            clean[test] = test_fails(build, program, test)
        if clean[test][0] is not False:
            wrong.append(number)
            print(f"{number:3} {test}: does not pass without a trap\n{clean[test][1]}", flush=True)
            continue
        planted = original
        moved = missing(number, original)
        if moved:
            wrong.append(number)
            print(f"{number:3} {name}: nothing to edit, the code has moved: {moved[0]!r}", flush=True)
            continue
        for text, replacement in edits:
            planted = planted.replace(text, replacement)
        path.write_text(planted)
        try:
            failed, output = test_fails(build, program, test)
        finally:
            path.write_text(original)
        if failed:
            print(f"{number:3} caught by {test}", flush=True)
        else:
            wrong.append(number)
            print(f"{number:3} {'does not build' if failed is None else 'NOT caught'}: {test}\n{output}", flush=True)
    print(f"plant_traps: {len(args.traps or TRAPS) - len(wrong)} caught, {len(wrong)} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
