package main

import (
	"context"
	"fmt"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/quorum"
)

// beWitness serves a witness until a signal ends it, and returns the exit status.
func (l *launcher) beWitness() int {
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	done := make(chan error, 1)
	go func() {
		cfg, _, err := l.identity()
		var w *quorum.Witness
		if err == nil {
			w, err = quorum.Serve(ctx, l.serve, cfg)
		}
		if err == nil {
			l.screen.say("the witness answers at %v", w.Addr())
			<-ctx.Done()
			err = w.Close()
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				l.screen.say("-serve-witness: %v", err)
				return exitError
			}
			return 0
		case s := <-l.signals:
			if s != growSignal && s != noticeSignal {
				end(fmt.Errorf("%s: the witness ends", signalName(s.(syscall.Signal))))
			}
		}
	}
}
