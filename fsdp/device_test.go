package fsdp

import (
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine/fardevice"
)

// UseFarDevice has the models that are wrapped from here on compute on a device whose memory nobody
// else reaches, until restore.
func UseFarDevice() (restore func()) {
	near := newDevice
	newDevice = func(cfg *Config, dry bool) (engine.Device, error) {
		d, err := near(cfg, dry)
		if h, ok := d.(*engine.Host); ok && err == nil {
			d = fardevice.New(h)
		}
		return d, err
	}
	return func() { newDevice = near }
}

// WhileClosing has models that are wrapped from here on do something in the middle of Close, until
// restore.
func WhileClosing(do func()) (restore func()) {
	near := newDevice
	newDevice = func(cfg *Config, dry bool) (engine.Device, error) {
		d, err := near(cfg, dry)
		return closing{d, do}, err
	}
	return func() { newDevice = near }
}

type closing struct {
	engine.Device
	do func()
}

func (c closing) Close() error {
	c.do()
	return c.Device.Close()
}

// KeepPasses has engines keep compiled passes of so many bytes, until restore.
func KeepPasses(bytes int) (restore func()) {
	before := engine.KeepBytes
	engine.KeepBytes = bytes
	return func() { engine.KeepBytes = before }
}

// Native has models believe that the processor multiplies bfloat16, or that it does not, until
// restore.
func Native(native bool) (restore func()) {
	before := nativeBFloat16
	nativeBFloat16 = func() bool { return native }
	return func() { nativeBFloat16 = before }
}
