package train

import (
	"context"
	_ "embed"
	"io"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/workshop/bench/torch"
)

//go:embed peers/gpt.py
var gptScript []byte

// peer is PyTorch with the same model and steps.
type peer struct {
	*torch.Torch
	compile bool // torch.compile too
	script  string
}

func newPeer(ctx context.Context, w io.Writer, python string, compile bool, dir string) (*peer, error) {
	p := &peer{compile: compile, script: filepath.Join(dir, "gpt.py")}
	if err := os.WriteFile(p.script, gptScript, 0o600); err != nil {
		return nil, err
	}
	var err error
	p.Torch, err = torch.New(ctx, w, python, dir)
	return p, err
}
