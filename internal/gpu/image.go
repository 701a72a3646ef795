package gpu

import "github.com/gofsdp/gofsdp/internal/exec"

// imageKinds are convolutions, pooling and patches, and their gradients.
var imageKinds = map[exec.Kind]lowering{
	exec.KindConv:        conv,
	exec.KindConvGradX:   image("image_convdx"),
	exec.KindConvGradW:   imageSums("image_convdw"),
	exec.KindConvGradB:   imageSums("image_convdb"),
	exec.KindPatches:     image("image_patches"),
	exec.KindPatchesGrad: image("image_patchesdx"),
	exec.KindMaxPool:     image("image_maxpool"),
	exec.KindMaxPoolGrad: image("image_maxpooldx"),
	exec.KindAvgPool:     image("image_avgpool"),
	exec.KindAvgPoolGrad: image("image_avgpooldx"),
}

// geometry returns the arguments that kernels/image.cu calls geometry. n is the number of elements.
func geometry(o *exec.Op, n int) []any {
	channels := o.Dim("C")
	c, out, k := exec.Conv{Dilation: [2]int{1, 1}, Groups: 1}, channels, [2]int{}
	switch a := o.Attrs.(type) {
	case exec.Conv:
		c, out, k = a, o.Dim("O"), [2]int{o.Dim("K"), o.Dim("L")}
	case exec.Pool:
		c.Stride, c.Pad, k = a.Stride, a.Pad, a.Kernel
	case exec.Patches:
		c.Stride, c.Pad, c.Dilation, k = a.Stride, a.Pad, a.Dilation, a.Kernel
	}
	list := []any{uint64(n)}
	for _, v := range []int{
		channels, o.Dim("H"), o.Dim("W"), out, k[0], k[1], o.Dim("P"), o.Dim("Q"), c.Stride[0], c.Stride[1], c.Pad[0], c.Pad[1],
		c.Dilation[0], c.Dilation[1], c.Groups,
	} {
		list = append(list, int32(v))
	}
	return list
}

// image returns the lowering of an operation with one thread for each element of the result.
func image(kernel string) lowering {
	return func(b *builder, in *exec.Instr) error {
		n, args := exec.Numel(in.Out.Shape), []any{in.Out}
		for _, o := range in.In {
			args = append(args, o)
		}
		return b.each(kernel, n, append(args, geometry(in.Op, n)...)...)
	}
}

func conv(b *builder, in *exec.Instr) error {
	n, bias := exec.Numel(in.Out.Shape), any(null)
	if len(in.In) > 2 {
		bias = in.In[2]
	}
	return b.each("image_conv", n, append([]any{in.Out, in.In[0], in.In[1], bias}, geometry(in.Op, n)...)...)
}

// imageSums returns the lowering of an operation with one block for each element of the result, a
// sum over the batch.
func imageSums(kernel string) lowering {
	return func(b *builder, in *exec.Instr) error {
		args := []any{in.Out}
		for _, o := range in.In {
			args = append(args, o)
		}
		args = append(args, geometry(in.Op, in.Op.Dim("B"))...)
		return b.blocks(kernel, uint64(exec.Numel(in.Out.Shape)), append(args, in.Acc)...)
	}
}
