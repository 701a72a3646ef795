package kit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// FileTensor is a tensor as a reader that knows nothing but the description of safetensors sees it.
type FileTensor struct {
	DType   string    `json:"dtype"`
	Shape   []int     `json:"shape"`
	Offsets [2]int64  `json:"data_offsets"`
	Data    []float64 `json:"-"`
}

// ParseFile reads a file.
func ParseFile(t require.TestingT, path string) (tensors map[string]*FileTensor, about map[string]string) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(b)
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b[8:8+n], &raw))
	tensors = make(map[string]*FileTensor)
	for name, text := range raw {
		if name == "__metadata__" {
			require.NoError(t, json.Unmarshal(text, &about))
			continue
		}
		x := new(FileTensor)
		require.NoError(t, json.Unmarshal(text, x))
		size := map[string]int{"F64": 8, "F32": 4, "BF16": 2, "F16": 2}[x.DType]
		for data := b[8+n:][x.Offsets[0]:x.Offsets[1]]; len(data) > 0; data = data[size:] {
			var v float64
			switch x.DType {
			case "F64":
				v = math.Float64frombits(binary.LittleEndian.Uint64(data))
			case "F32":
				v = float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
			case "BF16":
				v = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16))
			case "F16":
				v = float64(comm.F16(binary.LittleEndian.Uint16(data)).Float32())
			}
			x.Data = append(x.Data, v)
		}
		tensors[name] = x
	}
	return tensors, about
}

// ToGPT2 returns options that export a file with names and layouts of its own.
func ToGPT2() *fsdp.ExportOptions {
	return &fsdp.ExportOptions{
		Rename:    func(name string) string { return "h." + strings.ReplaceAll(name, ".w", ".weight") },
		Transpose: func(name string) bool { return name == "b.w" || name == "experts.up" },
	}
}

// FromGPT2 returns options that import such a file.
func FromGPT2() *fsdp.ImportOptions {
	to := ToGPT2()
	return &fsdp.ImportOptions{Rename: to.Rename, Transpose: to.Transpose}
}

// ErrDiskFull is the error of file systems that fail.
var ErrDiskFull = errors.New("the disk is full")

// Unreadable is a disk that fails on rank 1 behind the beginning of files.
type Unreadable struct {
	checkpoint.FS
	Rank int
}

// Open implements checkpoint.FS.
func (u *Unreadable) Open(path string) (checkpoint.Handle, error) {
	h, err := u.FS.Open(path)
	if err == nil && u.Rank == 1 && strings.HasSuffix(path, ".safetensors") {
		h = &unreadableHandle{Handle: h}
	}
	return h, err
}

type unreadableHandle struct {
	checkpoint.Handle
	reads int
}

func (h *unreadableHandle) ReadAt(b []byte, at int64) (int, error) {
	if h.reads++; h.reads > 5 {
		return 0, ErrDiskFull
	}
	return h.Handle.ReadAt(b, at)
}

// HookedFS calls a function before a file is made.
type HookedFS struct {
	checkpoint.FS
	BeforeCreate func(path string)
}

// Create implements checkpoint.FS.
func (h *HookedFS) Create(path string) (checkpoint.Handle, error) {
	h.BeforeCreate(path)
	return h.FS.Create(path)
}
