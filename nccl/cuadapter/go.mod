module github.com/gofsdp/gofsdp/nccl/cuadapter

go 1.26.0

require (
	github.com/gofsdp/gofsdp v0.0.0
	github.com/stretchr/testify v1.12.1
	gorgonia.org/cu v0.9.6
)

require (
	github.com/google/uuid v1.3.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/gofsdp/gofsdp => ../..
