package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
)

var verifyCommand = command{
	name: "verify", args: "PATH", n: 1, short: "read everything and list damage",
	long: `
Reads every byte of a checkpoint and compares it with the checksums taken at
writing: data, headers of the files, and the manifest. Each damaged place is a
line with the file, the tensor and the bytes. The exit status is 1 if there is
any.`,
	flags: func(*flag.FlagSet) action { return verify },
}

func verify(ctx context.Context, sys system, args []string) (err error) {
	r, dir, err := open(ctx, sys, args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m := r.Manifest()
	p := newProgress(sys.err, "verifying", dataBytes(m))
	damage := r.Verify(ctx, p.add)
	p.end()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if damage == nil {
		fmt.Fprintf(sys.out, "%s is whole: %s in %s\n", dir, sizeText(fileBytes(m)), plural(len(m.Files), "file"))
		return nil
	}
	faults := []error{damage}
	if joined, ok := damage.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for _, fault := range faults {
		fmt.Fprintln(sys.out, fault)
	}
	return fmt.Errorf("%s is damaged", dir)
}
