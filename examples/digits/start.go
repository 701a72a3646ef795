package main

import (
	"bytes"
	_ "embed" // the data are part of the program, so it runs in any directory

	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

var (
	//go:embed testdata/images.npy
	images []byte // 64 bytes for each image
	//go:embed testdata/labels.npy
	labels []byte // one byte for each image
)

// samples returns the images with their labels. data.OpenNpy reads such files from a disk.
func samples() (list []digit) {
	_, pixels, _ := bytes.Cut(images, []byte("\n")) // a line describes the array
	_, names, _ := bytes.Cut(labels, []byte("\n"))
	for i, name := range names {
		d := digit{Pixels: make([]float32, 64), Label: int(name)}
		for k := range d.Pixels {
			d.Pixels[k] = float32(pixels[64*i+k])
		}
		list = append(list, d)
	}
	return list
}

// tellOver says so if the checkpoint is the end of a training.
func tellOver(mon *monitor.Monitor, done, steps int) {
	if done == steps {
		mon.Printf("The training is complete: digits.ckpt has step %d of %d. Delete it to train again.\n", done, steps)
	}
}
