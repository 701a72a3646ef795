package kit

import (
	"context"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine/fardevice"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// UseFarDevice has the models that are wrapped from here on compute on a device whose memory nobody
// else reaches, until restore.
func UseFarDevice() (restore func()) {
	near := engine.Default
	engine.Default = func(rank int, o engine.HostOptions, dry bool) (engine.Device, error) {
		d, err := near(rank, o, dry)
		if h, ok := d.(*engine.Host); ok && err == nil {
			d = fardevice.New(h)
		}
		return d, err
	}
	return func() { engine.Default = near }
}

// WhileClosing has models that are wrapped from here on do something in the middle of Close, until
// restore.
func WhileClosing(do func()) (restore func()) {
	near := engine.Default
	engine.Default = func(rank int, o engine.HostOptions, dry bool) (engine.Device, error) {
		d, err := near(rank, o, dry)
		return closing{d, do}, err
	}
	return func() { engine.Default = near }
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

// OnFS has the methods that get the context use another file system than the system's.
func OnFS(ctx context.Context, fsys checkpoint.FS) context.Context { return state.WithFS(ctx, fsys) }

// A mute file system does not answer when a file is opened on one rank.
type Mute struct {
	checkpoint.FS
	Back <-chan struct{}
}

// Open waits until Back is closed.
func (m Mute) Open(path string) (checkpoint.Handle, error) {
	<-m.Back
	return m.FS.Open(path)
}
