package nccl_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/nccl"
)

// Every process that a launcher has started takes the GPU of its place on the host, and
// sums over all of them in device memory.
func ExampleNew() {
	ctx := context.Background()
	boot, err := comm.FromEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer boot.Close()
	cfg, _, err := comm.ConfigFromEnv()
	if err != nil {
		log.Fatal(err)
	}
	gpus, err := nccl.Devices()
	if err != nil {
		log.Fatal(err) // matches nccl.ErrUnavailable where there is no GPU
	}
	local := cfg.LocalRank
	if gpus == 1 {
		local = 0 // srun --gpus-per-task=1 shows a rank its own alone
	}
	dev, err := nccl.OpenDevice(local)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	g, err := nccl.New(ctx, boot, dev, nccl.GroupConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()

	const n = 1 << 20
	grads, err := dev.Alloc(4 * n)
	if err != nil {
		log.Fatal(err)
	}
	defer grads.Free()
	if err := g.AllReduce(transport.OnDevice[float32](grads.Addr(), n).Named("grads"), comm.Avg).Wait(ctx); err != nil {
		log.Fatal(err)
	}
	loss := []float64{1} // host memory works as well
	if err := g.AllReduce(comm.Of(loss), comm.Avg).Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("mean loss", loss[0])
}
