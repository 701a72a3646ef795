package auth_test

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// A server that wants no second rank 3 says so to the one who comes second.
func Example() {
	secret := []byte("openssl rand -hex 32")
	deadline := time.Now().Add(auth.Timeout)
	a, b := net.Pipe()
	defer a.Close()
	served := make(chan error)
	go func() {
		defer b.Close()
		_, err := auth.Server(b, secret, func(theirs auth.Hello) (auth.Hello, error) {
			return auth.Hello{}, fmt.Errorf("rank %d has joined already", theirs.Rank)
		}, deadline)
		served <- err
	}()
	_, err := auth.Client(a, secret, auth.Hello{Job: "gpt", Rank: 3, Size: 8}, deadline)
	var refused *auth.RefusedError
	if errors.As(err, &refused) {
		fmt.Println("client:", refused.Reason)
	}
	fmt.Println("server:", <-served)
	// Output:
	// client: rank 3 has joined already
	// server: auth: pipe: refused rank 3 of 8, job "gpt": rank 3 has joined already
}
