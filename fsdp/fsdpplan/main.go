// Fsdpplan predicts how a model trains best on a cluster, before there is one:
// the best settings, their speed and memory, why other settings do not fit, and
// how far such predictions are from published runs. It runs nothing: GPT-3 on
// 128, 256 and 512 GPUs takes some seconds of one core. With -calibrate it
// measures the cores of its own machine, as a cluster for predictions.
//
//	fsdpplan -model NAME | -hf DIR | -calibrate FILE [flags]
//
//	-model NAME         gpt-125m to gpt-175b, gpt-1t, llama-8b, llama-70b, llama-405b, t5-11b
//	-hf DIR             the model of a config.json of transformers; weights are not read
//	-cluster NAME|FILE  such as a100-80 or h100, or a file that plan.Parse reads
//	-ranks LIST         numbers of GPUs: 8,24 or 128..1024, which doubles, or smallest
//	-batch N -seq N     samples of a GPU in a step, and tokens of a sample
//	-threads N          cores of a rank, where cores compute
//	-precision NAME     bf16, bf16-reduce (gradients are reduced in bf16, too), fp32, or bf16-all
//	                    (parameters and gradients are kept in bf16, too)
//	-optimizer NAME     adamw, 8bit, 16bit or sgd
//	-memory SIZE        of a GPU, in place of the cluster's
//	-top N              rows for each number of GPUs
//	-compare            DDP, ZeRO-2, ZeRO-3, hybrid and ZeRO++ side by side
//	-calibrate FILE     measure this machine, for -ranks N over -transport NAME (goroutines, shm, tcp)
//	-trace FILE         the best step for https://ui.perfetto.dev
//	-svg FILE           a picture of it: memory by class, and the two streams
//
// # A session
//
//	$ fsdpplan -model gpt-175b -cluster a100-80 -ranks 128,512 -batch 1
//	gpt-175b: 175.2B parameters, bf16, optimizer adamw, 1 × 2048 tokens a GPU and
//	step, on a100-80: NVIDIA A100 SXM 80 GB with 85.9 GB, 230.0 GB/s between the 8
//	of a host, 200.0 GB/s between hosts
//
//	                             recom- micro pre mem-   seconds tokens/s        ex-
//	  GPUs strategy     unit     pute   batch fet  ory    a step    a GPU  MFU posed
//	   128 FullShard    blocks   full     1×1   1  63%    15.302    133.8  46%    1%
//	       FullShard    calls    full     1×1   2  62%    15.306    133.8  46%    1%
//	       FullShard    2 blocks full     1×1   1  88%    15.326    133.6  45%    1%
//	   512 FullShard    blocks   some     1×1   1  94%    13.011    157.4  54%    1%
//	       FullShard    calls    some     1×1   2  92%    13.019    157.3  54%    1%
//	       FullShard    2 blocks full     1×1   1  69%    15.388    133.1  45%    1%
//
//	128 GPUs: 6 of 120 settings fit: FullShard.
//	512 GPUs: 10 of 120 settings fit: FullShard.
//
// Then come the strategies that do not fit, with their memory at the peak and
// the changes that would help most, and the table of predictions and published
// runs from plan.Published.
//
// If nothing fits on any of the numbers, fsdpplan searches for the fewest GPUs
// on which a setting fits, and prints what fills their memory. If no number is
// enough, it prints the changes that help.
//
// # Calibration
//
//	$ fsdpplan -calibrate here.json -ranks 2
//	$ fsdpplan -cluster here.json -model gpt-125m -seq 256 -precision fp32
//
// It trains small models on one rank, on all ranks, and on one rank with as
// many threads as there are cores, for a minute or two, and fits the time of
// each operation, see plan.Rate. Nothing else should run meanwhile, or only
// with a lower priority (nice). "make bench-plan" compares such predictions
// with steps.
//
// Some values are assumed, not measured. Several ranks gain from threads as
// much as one rank does. Times between measured numbers of ranks are on a line.
// Between numbers of threads, a part of the work is divided by the number. The
// link between hosts is 10 Gb/s in the file, to be edited.
//
// # The table
//
// The settings are settings of fsdp.Config. A unit is a block of the model,
// several, each call, or all of it. Recompute "full" keeps only the inputs of
// blocks, "some" keeps products and recomputes activations, "none" keeps all.
// The batch "2×4" is four passes of two samples. The next column is
// Config.Prefetch. Memory is the peak as a share of the GPU's memory. MFU
// counts only the operations that the model needs, not recomputed ones. Exposed
// is the share of the step that waits for collectives.
//
// Fsdpplan also chooses micro batches. Another micro batch rounds sums
// differently, as another number of GPUs does. The other settings change no bit
// of the results of a step.
//
// The exit status is 0, also if nothing fits, 1 after a failure, and 2 for an
// invalid command line.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
