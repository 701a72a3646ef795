//go:build !linux || !cgo

package nccl

// In this build NCCL cannot be loaded. Load returns an error, and nothing below is reached.

type slot struct{}

func open(string) (why string, err error)              { return "", nil }
func setDriver(uintptr)                                {}
func uniqueID() (id UniqueID, r Result, detail string) { return id, SystemError, "" }
func newSlot(uintptr, *Config) *slot                   { return &slot{} }
func (*slot) free()                                    {}
func (*slot) live() bool                               { return false }
func (*slot) async() Result                            { return SystemError }
func (*slot) finalize() Result                         { return SystemError }
func (*slot) destroy() Result                          { return SystemError }
func (*slot) init(int, *UniqueID, int) Result          { return SystemError }
func (*slot) split(int, int, *slot) Result             { return SystemError }
func (*slot) place() (rank, size int, r Result)        { return 0, 0, SystemError }
func (*slot) abort() (r Result, detail string)         { return SystemError, "" }
func (*slot) run([]Op, uintptr) Result                 { return SystemError }
func (*slot) failed() (at int, detail string)          { return -1, "" }
