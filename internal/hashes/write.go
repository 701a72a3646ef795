package hashes

import (
	"bufio"
	"fmt"
	"io"
)

// A Kind is the kind of a hashed value. In a step the kinds are computed in this order.
type Kind uint8

// The kinds.
const (
	Param Kind = iota
	Batch
	Forward
	Backward
	Grad
	kinds
)

// String returns the kind's word in a record.
func (k Kind) String() string { return [...]string{"param", "batch", "forward", "backward", "grad"}[k] }

// An Entry is the hash of one thing.
type Entry struct {
	Kind Kind
	Name string // of the parameter or call
	// From is the number of a tensor of a batch, an output or an input, and To is 0. For a piece of
	// a parameter they are its range of elements.
	From, To int
	Bytes    int
	Sum      uint32
}

// A Head says to which training pass of a rank entries belong.
type Head struct {
	Number int // number of the pass among all passes of the rank, from 1
	Step   int // updates before it
	// Virtual is the virtual rank of the batch, see fsdp's Config.VirtualRanks, or -1.
	Virtual int
}

// A Writer writes the record of one rank. Flush returns the first error of writing.
type Writer struct{ w *bufio.Writer }

// NewWriter returns a Writer for the record of a rank among ranks.
func NewWriter(w io.Writer, rank, ranks int) *Writer {
	b := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(b, title, rank, ranks)
	return &Writer{b}
}

const (
	title = "gofsdp hashes 1 rank %d of %d\n"
	pass  = "pass %d step %d virtual %d\n"
	entry = "%s %d %d %d %08x %q\n"
	end   = "end\n"
)

// Pass begins the entries of a pass. Entries of other passes may come between them.
func (w *Writer) Pass(h Head) { fmt.Fprintf(w.w, pass, h.Number, h.Step, h.Virtual) }

// Entry adds an entry.
func (w *Writer) Entry(e Entry) {
	fmt.Fprintf(w.w, entry, e.Kind, e.From, e.To, e.Bytes, e.Sum, e.Name)
}

// End ends the pass, and writes it.
func (w *Writer) End() error {
	w.w.WriteString(end)
	return w.w.Flush()
}
