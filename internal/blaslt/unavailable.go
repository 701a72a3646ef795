//go:build !linux || !cgo

package blaslt

import "github.com/gofsdp/gofsdp/internal/device"

func unavailable() error { return (&device.Library{What: "cuBLASLt"}).Load("") }

// Load returns an error: this program cannot load the library.
func Load(path string) error { return unavailable() }

// Version returns an error: there is no library.
func Version() (int, error) { return 0, unavailable() }

// Handle is cuBLASLt on a device. There is none: New returns an error.
type Handle struct{ _ int }

// New returns an error: there is no library.
func New(dev *device.Device) (*Handle, error) { return nil, unavailable() }

// Close returns an error: there is no handle.
func (h *Handle) Close() error { return unavailable() }

// Plan returns an error: there is no handle.
func (h *Handle) Plan(x Product) (*Plan, error) { return nil, unavailable() }

// Plan is a product that is ready to run. There is none.
type Plan struct{ _ int }

// Workspace returns 0: there is no plan.
func (p *Plan) Workspace() int { return 0 }

// Run returns an error: there is no plan.
func (p *Plan) Run(s *device.Stream, at Operands) error { return unavailable() }

// Close returns an error: there is no plan.
func (p *Plan) Close() error { return unavailable() }
