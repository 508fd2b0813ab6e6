"""The list of everyday questions: data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of a newcomer."""

    text: str
    """As people ask it."""
    command: str
    """As it is typed."""
    part: str
    """What of the answer is compared."""
    known: float | bool | str
    """The published or simulated answer; of a text a part of it."""
    source: str
    """Who says so: a row of the truth set, a paper or page, or the exact simulation."""
    within: float = 0.15
    """Relative difference that counts as right."""
    off: float | None = None
    """Where it is off today: the largest difference that the test allows."""
    remark: str = ""
    """What a reader should know about a difference."""


_TUNE = "--trainer torchtune --precision bf16-pure --recompute full --seq-len 2048"
_OLD_TUNE = _TUNE.replace("torchtune", "torchtune@2024-06")
_LITGPT = "--trainer litgpt --precision bf16-pure --seq-len 512 --gpu a10g"

QUESTIONS = (
    # Does it fit?
    Question(
        text="Can I full-finetune Llama-3-8B on 8 x A100-40?",
        command="workbench memory --model llama-3-8b --gpu a100-40gb --gpus 8 --strategy fsdp "
        "--recompute full",
        part="allocated GiB",
        known=20.339,
        source="simulation",
    ),
    Question(
        text="DDP with Llama-3-8B on 8 x A100-80, plain AdamW?",
        command="workbench memory --model llama-3-8b --gpu a100-80gb --gpus 8 --strategy ddp",
        part="fits",
        known=False,
        source="16 bytes a parameter, arXiv 1910.02054: 120 GiB",
    ),
    Question(
        text="QLoRA of a 65B on one 48 GB card?",
        command="workbench memory --model llama-65b --gpu a6000 --quantization nf4-dq "
        "--lora-rank 64 --lora-targets q,k,v,o,gate,up,down --recompute full --seq-len 512 "
        "--optimizer paged-adamw",
        part="fits",
        known=True,
        source="arXiv 2305.14314, abstract",
    ),
    Question(
        text="QLoRA 70B on one 48 GB card?",
        command="workbench memory --model llama-3-70b --gpu a6000 --quantization nf4-dq "
        "--lora-rank 16 --recompute full --seq-len 512",
        part="fits",
        known=True,
        source="simulation",
    ),
    Question(
        text="LoRA of Llama-2-7B on a 4090?",
        command=f"workbench memory --model llama-2-7b --gpu rtx-4090 --lora-rank 8 {_OLD_TUNE} "
        "--micro-batch 4",
        part="allocated GiB",
        known=19.837,
        source="M-tune0217-002",
    ),
    Question(
        text="And QLoRA of it?",
        command="workbench memory --model llama-2-7b --gpu rtx-4090 --lora-rank 8 --lora-targets "
        f"q,k,v,o,gate,up,down --quantization nf4 {_OLD_TUNE} --micro-batch 4 --kernels compiled",
        part="allocated GiB",
        known=11.455,
        source="M-tune0217-001",
    ),
    Question(
        text="Can I full-finetune Llama-3-8B on one 4090, sequences packed?",
        command="workbench memory --model llama-3-8b --gpu rtx-4090 --optimizer paged-adamw-8bit "
        f"--optimizer-in-backward {_TUNE} --micro-batch 2 --no-variable-length",
        part="reserved GiB",
        known=18.9,
        source="M-tunehead-001",
    ),
    Question(
        text="LoRA of Llama-3-70B on 8 x A100-80, sequences packed?",
        command="workbench memory --model llama-3-70b --gpu a100-80gb --gpus 8 --strategy fsdp "
        f"--lora-rank 16 --lora-targets q,k,v {_TUNE} --micro-batch 2 --optimizer adamw-fused "
        "--kernels compiled --no-variable-length",
        part="allocated GiB",
        known=27.6,
        source="M-tunehead-007",
    ),
    Question(
        text="LoRA of Llama-3-8B on an A10G?",
        command=f"workbench memory --model llama-3-8b --lora-rank 32 {_LITGPT}",
        part="allocated GiB",
        known=18.375,
        source="M-litgptcfg-016",
    ),
    Question(
        text="LoRA of Gemma-2-9B on an A10G?",
        command="workbench memory --model gemma-2-9b --lora-rank 16 --lora-targets "
        f"q,k,v,o,gate,up,down {_LITGPT}",
        part="fits",
        known=False,
        source="M-litgptcfg-010: out of memory",
    ),
    Question(
        text="LoRA of Llama-2-13B with batch 2 on one A100-40?",
        command="workbench memory --model llama-2-13b --gpu a100-40gb --lora-rank 8 --micro-batch 2 "
        "--seq-len 1304 --trainer litgpt --precision bf16-pure",
        part="fits",
        known=False,
        source="M-litgpt-019: out of memory",
    ),
    Question(
        text="Full fine-tuning of TinyLlama on an A10G?",
        command=f"workbench memory --model tinyllama-1.1b --micro-batch 4 --accumulate 8 {_LITGPT}",
        part="allocated GiB",
        known=13.132,
        source="M-litgptcfg-040",
    ),
    Question(
        text="LoRA of Llama-3.2-3B with PEFT on an L40S?",
        command="workbench memory --model llama-3.2-3b --gpu l40s --lora-rank 32 --micro-batch 4 "
        "--seq-len 768 --trainer peft",
        part="reserved GiB",
        known=20.762,
        source="M-peft-010",
    ),
    Question(
        text="QLoRA of Yi-34B on two 3090?",
        command="workbench memory --model yi-34b --gpu rtx-3090 --gpus 2 --strategy fsdp "
        "--quantization nf4 --lora-rank 64 --lora-targets q,k,v,o,gate,up,down --recompute full "
        "--trainer fsdp_qlora --precision bf16-pure --micro-batch 2",
        part="reserved GiB",
        known=23.05,
        source="M-fsdpqlora-011",
    ),
    Question(
        text="Llama-3-8B at 8k on 8 x H100 with torchtitan?",
        command="workbench memory --model llama-3-8b --gpu h100 --gpus 8 --strategy fsdp "
        "--seq-len 8192 --recompute selective --recompute-parts op --trainer torchtitan",
        part="reserved GiB",
        known=47.65,
        source="M-ao-001",
    ),
    Question(
        text="Full fine-tuning of Qwen2.5-14B on 8 x A800-80 with ZeRO-3, packed to 8k?",
        command="workbench memory --model qwen2.5-14b --gpu a100-80gb --gpus 8 --strategy zero3 "
        "--seq-len 8192 --recompute full --trainer ms-swift --no-variable-length",
        part="on card GiB",
        known=58.0,
        source="M-swiftmeg-003",
    ),
    Question(
        text="Llama-3-8B at 8k on 8 x H200, optimizer on the host, loaded without zero.Init?",
        command="workbench memory --model llama-3-8b --gpu h200 --gpus 8 --strategy zero3 "
        "--offload optimizer --seq-len 8192 --recompute full --kernels fused --loss fused "
        "--whole-before-sharding",
        part="reserved GiB",
        known=16.3,
        source="M-mleng-001",
    ),
    Question(
        text="8B with 8-bit Adam on one H100, weights in bf16?",
        command="workbench memory --model llama-3-8b --gpu h100 --optimizer adamw-8bit "
        "--precision bf16-pure --recompute full",
        part="allocated GiB",
        known=45.122,
        source="simulation",
    ),
    Question(
        text="8B with 8-bit Adam on one H100?",
        command="workbench memory --model llama-3-8b --gpu h100 --optimizer adamw-8bit",
        part="first remedy",
        known="pure bf16 states",
        source="what people run",
    ),
    Question(
        text="LoRA of an 8B does not fit my 4090: what first?",
        command="workbench memory --model llama-3-8b --gpu rtx-4090 --lora-rank 16",
        part="first remedy",
        known="recompute full",
        source="gradient checkpointing, PEFT's and torchtune's guides",
    ),
    Question(
        text="ViT-L on a T4?",
        command="workbench memory --model vit-l-16 --gpu t4 --micro-batch 16",
        part="allocated GiB",
        known=6.924,
        source="simulation",
    ),
    Question(
        text="BERT base, 512 tokens, batch 16, on a T4?",
        command="workbench memory --model bert-base-uncased --gpu t4 --micro-batch 16 "
        "--seq-len 512",
        part="allocated GiB",
        known=7.268,
        source="simulation",
    ),
    Question(
        text="And to classify with it?",
        command="workbench memory --model bert-base-uncased-classifier --gpu t4 --micro-batch 16 "
        "--seq-len 512",
        part="allocated GiB",
        known=4.476,
        source="simulation of BertForSequenceClassification",
    ),
    Question(
        text="Mixtral LoRA on 2 x H100?",
        command="workbench memory --model mixtral-8x7b --gpu h100 --gpus 2 --strategy fsdp "
        "--lora-rank 16 --recompute full",
        part="allocated GiB",
        known=52.634,
        source="simulation",
    ),
    Question(
        text="Largest micro-batch of GPT-2 at 1024 tokens on a 4090?",
        command="workbench memory --model gpt2 --gpu rtx-4090",
        part="largest micro-batch",
        known=20,
        source="simulation",
    ),
    Question(
        text="How much host memory does a 72B with ZeRO-3 offload take on 8 GPUs?",
        command="workbench memory --model qwen2.5-72b --gpu a100-40gb --gpus 8 --strategy zero3 "
        "--offload optimizer,parameters --recompute full",
        part="host GiB",
        known=72.7e9 * 16 / 2**30,
        source="16 bytes a parameter: DeepSpeed's ZeRO-Infinity, arXiv 2104.07857",
    ),
    # How long, how much?
    Question(
        text="How long for 1B tokens of Llama-3-8B on 8 x H100?",
        command="workbench cost --model llama-3-8b --gpu h100 --gpus 8 --strategy fsdp "
        "--seq-len 8192 --recompute selective --recompute-parts op --kernels compiled "
        "--trainer torchtitan --tokens 1B",
        part="tokens/s/GPU",
        known=6150,
        source="T-ao-001",
        off=0.45,
        remark="compiled FSDP at 8k is too fast",
    ),
    Question(
        text="And in fp8?",
        command="workbench cost --model llama-3-8b --gpu h100 --gpus 8 --strategy fsdp "
        "--seq-len 8192 --recompute selective --recompute-parts op --kernels compiled "
        "--trainer torchtitan --precision fp8 --tokens 1B",
        part="tokens/s/GPU",
        known=7689.5,
        source="T-ao-002",
        off=0.45,
        remark="compiled FSDP at 8k is too fast",
    ),
    Question(
        text="GPU-hours to pretrain Llama-3-8B on 15T tokens?",
        command="workbench cost --model llama-3-8b --gpu h100 --gpus 8 --nodes 64 --strategy fsdp "
        "--seq-len 8192 --tokens 15T",
        part="GPU-hours",
        known=1.3e6,
        source="Meta's model card, C-llamacards-004",
        off=0.75,
        remark="the card counts all runs of the project; 15 % of the peak rate",
    ),
    Question(
        text="GPU-hours to pretrain Llama-2-7B on 2T tokens?",
        command="workbench cost --model llama-2-7b --gpu a100-80gb --gpus 8 --nodes 32 "
        "--strategy fsdp --seq-len 4096 --tokens 2T",
        part="GPU-hours",
        known=184320,
        source="Meta's model card, C-llamacards-001",
        within=0.25,
    ),
    Question(
        text="How long to train GPT-2 350M on 31.5B tokens with 8 x A100?",
        command="workbench cost --model gpt2-medium --gpu a100-80gb --gpus 8 --strategy ddp "
        "--micro-batch 64 --seq-len 1024 --trainer llm.c --tokens 31.5B",
        part="hours",
        known=13.7,
        source="C-llmc-002",
        off=0.35,
        remark="llm.c's own kernels",
    ),
    Question(
        text="How fast is MPT-7B on 8 x H100?",
        command="workbench cost --model mpt-7b --gpu h100 --gpus 8 --strategy fsdp --micro-batch 6 "
        "--seq-len 2048 --trainer llm-foundry --tokens 1B",
        part="tokens/s/GPU",
        known=10643,
        source="T-llmfoundry-039",
    ),
    Question(
        text="How fast is LoRA of Llama-2-7B on a 4090?",
        command="workbench cost --model llama-2-7b --gpu rtx-4090 --lora-rank 8 "
        f"{_TUNE} --micro-batch 4 --tokens 100M",
        part="tokens/s/GPU",
        known=2582,
        source="T-tune0217-002",
    ),
    Question(
        text="How fast is QLoRA of Llama-2-70B on 2 x A100-40?",
        command="workbench cost --model llama-2-70b --gpu a100-40gb --gpus 2 --strategy fsdp "
        "--quantization nf4 --lora-rank 64 --lora-targets q,k,v,o,gate,up,down --recompute full "
        "--trainer fsdp_qlora --precision bf16-pure --seq-len 2048 --tokens 2.1M",
        part="tokens/s/GPU",
        known=320,
        source="T-fsdpqlora-030",
        off=0.35,
        remark="two cards, unpacking of 4 bits",
    ),
    Question(
        text="GPU-hours for TinyLlama on 300B tokens with A100-40?",
        command="workbench cost --model tinyllama-1.1b --gpu a100-40gb --gpus 4 --nodes 4 "
        "--strategy fsdp --micro-batch 8 --kernels fused --seq-len 2048 --tokens 300B",
        part="GPU-hours",
        known=3456,
        source="TinyLlama's README, C-tinyllama-001",
        off=0.4,
        remark="the links between its nodes are not published",
    ),
    # What it does not know, it says.
    Question(
        text="fp8 on an A100?",
        command="workbench memory --model llama-3-8b --gpu a100-80gb --precision fp8",
        part="note",
        known="has no fp8 matmuls. Use precision bf16",
        source="NVIDIA's data sheet",
    ),
    Question(
        text="What precision on a V100?",
        command="workbench memory --model gpt2 --gpu v100",
        part="note",
        known="has no bf16 matmuls: fp16 is assumed",
        source="NVIDIA's data sheet",
    ),
    Question(
        text="SDXL LoRA on a 4090?",
        command="workbench memory --model sdxl --gpu rtx-4090 --lora-rank 16",
        part="refusal",
        known="workbench measure train.py",
        source="a diffusion model: not of these shapes",
    ),
    Question(
        text="Fine-tune Whisper large on a T4?",
        command="workbench memory --model openai/whisper-large-v3 --gpu t4",
        part="refusal",
        known="workbench measure train.py",
        source="an audio model: not of these shapes",
    ),
    Question(
        text="Llama-4-Scout on 8 x H100?",
        command="workbench memory --model llama-4-scout --gpu h100 --gpus 8",
        part="refusal",
        known="give its config.json",
        source="another generation is not put in its place",
    ),
)
