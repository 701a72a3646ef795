// Fsdpckpt inspects checkpoints, verifies them and merges them into one file,
// without their model.
//
//	fsdpckpt list DIR                         every checkpoint of a job
//	fsdpckpt inspect PATH                     the contents of a checkpoint
//	fsdpckpt verify PATH                      read all of it, and say what is damaged
//	fsdpckpt merge PATH OUT.safetensors       one file for other programs
//
// PATH is a checkpoint, or the directory of a job: then its last complete
// checkpoint. Flags may be before, between and after the arguments; fsdpckpt
// COMMAND -h lists them.
//
// # A session
//
// A small GPT was trained on three ranks. Then a file was cut short:
//
//	$ fsdpckpt list bad
//	CHECKPOINT      STEP  RANKS  FILES  SIZE     WHEN
//	000003-step-30  30    3      3      1.0 MiB  2026-11-21 17:37:16
//	000004-step-40  40    -      -      -        2026-11-21 17:37:16
//
//	000004-step-40 is skipped:
//	  rank-00002-of-00003.safetensors: damaged: it has 200000 bytes, 348672 were
//	    written
//
// Load would resume from step 30. There is a copy:
//
//	$ fsdpckpt inspect ckpt
//	ckpt/000004-step-40
//
//	step        40
//	ranks       3
//	seed        1
//	passes      40
//	parameters  17 tensors, 86,976 elements of F32, 339.8 KiB
//	optimizer   40 steps, 34 tensors, 173,952 elements of F32, 679.5 KiB
//	entries     exp_avg, exp_avg_sq
//	extra       run {"Flags":{"batch":"16","data":"text of 9… (2.0 KiB)
//
//	FILE  NAME                             PIECES  SIZE
//	0     rank-00000-of-00003.safetensors  18      341.6 KiB
//	1     rank-00001-of-00003.safetensors  33      342.9 KiB
//	2     rank-00002-of-00003.safetensors  12      340.5 KiB
//
// With -tensors it also prints where the tensors are: file 0 has elements 0 to
// 12335 of the embedding, file 1 the rest.
//
//	TENSOR                           TYPE  SHAPE     SIZE      UPDATES  PIECES
//	wte.weight                       F32   [256 64]  64.0 KiB  -        0[0:12336] 1[12336:16384]
//	exp_avg:wte.weight               F32   [256 64]  64.0 KiB  40       0[0:12336] 1[12336:16384]
//
// Only a complete read shows whether each byte is unchanged. Here one byte of a
// copy has changed:
//
//	$ fsdpckpt verify ckpt
//	ckpt/000004-step-40 is whole: 1.0 MiB in 3 files
//	$ fsdpckpt verify copy
//	rank-00001-of-00003.safetensors: blocks.0.fc.weight[0:16384] in bytes [53312:118848]: damaged: CRC-32C is 07fe09d9, want e42c059f
//	fsdpckpt verify: copy/000004-step-40 is damaged
//
// Other programs read one file with the whole weights, and so does fsdp.Import:
//
//	$ fsdpckpt merge ckpt gpt.safetensors -dtype bf16
//	gpt.safetensors: 17 tensors, 171.2 KiB, of ckpt/000004-step-40
//
// # Guarantees
//
//   - Only merge writes. Its file gets its name when all of it is on disk.
//     After an error or Ctrl-C the directory is the same as before.
//   - Damaged data is not copied: everything that is read is compared with its
//     checksums.
//   - Tensors of any size pass through a few MiB of memory.
//   - A parameter of experts, which ranks own, is "name@rank" with the first
//     rank of its group. Buffers are "name@rank", too; merge takes rank 0's
//     under the plain name, as fsdp.Export does.
//
// The exit status is 0, 1 after a failure or if there is damage, and 2 for an
// invalid command line. Progress is shown on a terminal.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], system{fs: checkpoint.OS(), out: os.Stdout, err: os.Stderr, zone: time.Local}))
}
