//go:build linux && cgo

package gpudouble_test

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

//go:embed testdata/faults.ptx
var faultsText string

// What the driver says of a kernel that made a mistake.
const illegalAddress, misalignedAddress, launchFailed = 700, 716, 719

// TestFaults checks that each mistake of testdata/faults.cu is found, in blocks of 64 threads, and
// said where.
func TestFaults(t *testing.T) {
	for _, fault := range []struct {
		kernel string
		n      int32
		shared int
		code   int
		said   []string // by the report; none for no mistake
	}{
		{"no_barrier", 0, 0, launchFailed, []string{"no_barrier: block (0,0,0) thread (0,0,0): shared+252 is read and was never written", "ld.shared.f32"}},
		{"write_after_read", 0, 0, launchFailed, []string{"thread (32,0,0): race: shared+128 was read by warp 0 since the last barrier", "st.shared.f32"}},
		{"read_unset", 0, 0, launchFailed, []string{"thread (5,0,0): shared+20 is read and was never written"}},
		{"beyond_global", 65, 0, illegalAddress, []string{"block (1,0,0) thread (63,0,0): illegal address: a write of 4 bytes"}},
		{"beyond_shared", 1, 256, illegalAddress, []string{"thread (63,0,0): a write of 4 bytes at shared+256, the block has 256"}},
		{"misaligned", 0, 0, misalignedAddress, []string{"thread (1,0,0): misaligned address: a write of 8 bytes", "st.global.v2.f32"}},
		{"no_wait", 0, 0, launchFailed, []string{"a read at shared+", "where a copy that nobody has waited for goes", "ld.shared.f32"}},
		{"no_wait", 1, 0, 0, nil},
		{"wait_without_barrier", 0, 0, launchFailed, []string{"shared+252", "ld.shared.f32"}},
		{"half_a_barrier", 0, 0, launchFailed, []string{"of warp 0 wait for lanes", "bar.sync"}},
		{"warp_at_barrier", 0, 0, launchFailed, []string{"barriers other than 0 are not known", "bar.sync 1"}},
		{"half_a_shuffle", 0, 0, launchFailed, []string{"of warp 0 wait for lanes"}},
		{"shuffle_of_nobody", 0, 0, launchFailed, []string{"thread (1,0,0): the value of lane 0 is taken, which does not take part", "shfl.sync.bfly"}},
		{"endless", 0, 0, launchFailed, []string{"the kernel does not end"}},
		{"too_many_threads", 0, 0, launchFailed, []string{"64 threads a block, it is made for at most 32"}},
		{"traps", 0, 0, launchFailed, []string{"thread (40,0,0): the kernel gives up", "trap"}},
		{"halves", 0, 0, 0, nil},
		{"counted", 0, 0, 0, nil},
		{"read_while_counted", 0, 0, launchFailed, []string{"race: shared+0 was"}},
		{"early_end", 0, 0, 0, nil},
	} {
		t.Run(fault.kernel, func(t *testing.T) {
			m := newMachine(t)
			f := function(t, m.load(faultsText), fault.kernel)
			y := values(make([]float32, 128+fault.n-1))
			err := m.run(f, 2, 64, fault.shared, y, fault.n)
			reports := strings.Join(m.cuda.Reports(), "\n")
			if fault.code == 0 {
				require.NoError(t, err)
				require.Empty(t, reports)
				return
			}
			var failed *device.Error
			require.ErrorAs(t, err, &failed)
			require.Equal(t, fault.code, failed.Code)
			for _, said := range fault.said {
				require.Contains(t, reports, said)
			}
		})
	}
}

// TestLateCopies checks that a copy which nobody has waited for has not happened, also unchecked.
func TestLateCopies(t *testing.T) {
	m := newMachine(t)
	f := function(t, m.load(faultsText), "no_wait")
	m.cuda.Checks(t, 0)
	for n, want := range []bool{false, true} {
		y := values(make([]float32, 64))
		require.NoError(t, m.run(f, 1, 64, 0, y, int32(n)))
		for _, v := range decode[float32](y) {
			require.Equal(t, want, v == 1)
		}
	}
}

// TestReverse checks that the other order shows what depends on it, and that checks can be left
// out.
func TestReverse(t *testing.T) {
	m := newMachine(t)
	mod := m.load(faultsText)
	for kernel, ends := range map[string][2]float32{"last_lane_wins": {31, 0}, "last_block_wins": {3, 0}} {
		for i, checks := range []gpudouble.Check{gpudouble.Races, gpudouble.Reverse} {
			m.cuda.Checks(t, checks)
			y := values(make([]float32, 1))
			require.NoError(t, m.run(function(t, mod, kernel), 4, 32, 0, y, int32(0)))
			require.Equal(t, ends[i], decode[float32](y)[0], kernel)
		}
	}
	m.cuda.Checks(t, 0)
	require.NoError(t, m.run(function(t, mod, "write_after_read"), 1, 64, 0, values(make([]float32, 64)), int32(0)))
}

// TestTexts checks what is refused when a module is loaded: never is anything ignored.
func TestTexts(t *testing.T) {
	m := newMachine(t)
	kernel := func(body string) string { return ".visible .entry k(.param .u64 p)\n{\n" + body + "\nret;\n}\n" }
	for text, said := range map[string]string{
		kernel(".reg .f32 %f<2>;\nadd.rna.f32 %f1, %f1, %f1;"):                                                                                      "line 7, kernel k: the machine has no instruction add.rna.f32",
		kernel(".reg .f32 %f<2>;\nwarp.sync.f32 %f1, %f1;"):                                                                                         "no instruction warp.sync.f32",
		kernel(".reg .f32 %f<2>;\nld.global.sparkling.f32 %f1, [p];"):                                                                               "no instruction ld.global.sparkling.f32",
		kernel("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1}, {%f1}, {%f1}, {%f1};"):                                                    "no instruction mma.sync.aligned.m16n8k8",
		kernel("wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f1}, %d1, %d1, 1, 1, 1, 0, 0;"):                                              "no instruction wgmma.mma_async.sync.aligned.m64n12k16",
		kernel("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16 {%f1}, %d1, %d1, 1, 1, 1, 0, 0;"):                                                "no instruction wgmma.mma_async.sync.aligned.m64n8k16.f32.f16",
		kernel(".reg .f32 %f<4>; .reg .b64 %d;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2}, %d, %d, 1, 1, 1, 0, 0;"):       "no instruction wgmma",
		kernel(".reg .f32 %f<4>; .reg .b64 %d;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d, %d, 1, -1, 1, 0, 0;"): "no instruction wgmma",
		kernel("wgmma.wait_group.sync.aligned 8;"):                                                                                                  "no instruction wgmma.wait_group",
		kernel("fence.proxy.alias;"):                                        "no instruction fence.proxy.alias",
		kernel(".reg .b32 %r<2>;\nadd.s32 %r1, %r1, %r7;"):                  "unknown operand %r7",
		kernel(".reg .b32 %r<2>; .reg .b64 %d<2>;\nadd.s32 %r1, %r1, %d1;"): "%d1 is no register of 4 bytes",
		kernel(".reg .b32 %r<2>;\nmov.u32 %r1, %clock;"):                    "unknown operand %clock",
		kernel(".reg .pred %p; .reg .b32 %r;\nsetp.lt.s32 %r, %r, 1;"):      "%r is no predicate",
		kernel(".reg .b32 %r<2>;\nadd.s32 %r1, %r1 %r1;"):                   "there is no ',' before",
		kernel("bra nowhere;"):                                              "there is no label nowhere",
		kernel("call.uni missing;"):                                         "there is no function missing",
		kernel(".shared .b8 s[50000];\n.reg .b64 %d;\nmov.u64 %d, s;"):      "50000 bytes of shared variables, 48 KiB can be",
		kernel(".reg .f32 %f;\nmov.f32 %f, 0d3FF0000000000000;"):            "a number of 4 bytes is expected",
		".func f()\n{\ncall.uni f;\nret;\n}\n" + kernel("call.uni f;"):      "recursion is not known here",
		".global .u32 g[2] = {1, 2, 3};":                                    "more values than elements",
		".visible .entry k(":                                                "",
		".visible .entry k()\n{\n":                                          "a body without an end",
		".surface s;":                                                       ".surface is not known here",
	} {
		_, err := m.d.LoadModule([]byte(".version 7.8\n.target sm_80\n.address_size 64\n" + text))
		var failed *device.Error
		require.ErrorAs(t, err, &failed, text)
		require.Equal(t, 218, failed.Code)
		require.ErrorContains(t, err, said, text)
	}
}

// FuzzText loads texts that are nearly PTX: whatever they are, the answer is a module or an error.
func FuzzText(f *testing.F) {
	for _, pattern := range []string{"testdata/*.ptx", "../device/testdata/*.ptx", "../gpu/kernels/*.ptx"} {
		names, err := filepath.Glob(pattern)
		require.NoError(f, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(f, err)
			for i, part := range strings.SplitAfter(string(text), "\n}\n") {
				if i%8 == 0 {
					f.Add(part)
				}
			}
		}
	}
	m := newMachine(f)
	f.Fuzz(func(t *testing.T, text string) {
		mod, err := m.d.LoadModule([]byte(".version 7.8\n" + strings.ReplaceAll(text, "\x00", " ")))
		if err == nil {
			require.NoError(t, mod.Unload())
		}
	})
}
