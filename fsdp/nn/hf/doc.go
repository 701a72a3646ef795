// Package hf reads and writes models in the directories of Hugging Face's transformers:
//
//	config.json                    what the model is
//	model.safetensors              its weights, or
//	model.safetensors.index.json   which of several files has which of them
//
// Open makes the model, and after fsdp.Wrap each rank reads its own shard of the weights, and no
// more. Save writes a directory that transformers loads strictly:
//
//	m, err := hf.Open(dir)
//	s, err := fsdp.Wrap(m.Model, cfg)
//	err = m.Load(ctx, s)
//	…
//	err = m.Save(ctx, s, newDir)
//
// A model that was made here is saved with [New] in place of Open.
//
// # What is read
//
//	model_type                      model
//	gpt2                            nn.GPT
//	llama, mistral, qwen2, qwen3    nn.Llama
//	bert, for masked tokens         nn.BERT
//	vit, for classes of images      nn.ViT
//	t5, of all versions             nn.T5
//
// Weights of float32, float64, bfloat16 and float16 become the type of the computation. Joined
// parameters, such as those of queries, keys and values, are joined from the tensors of the file,
// and matrices that lie transposed there are transposed; a tied head has no tensor of its own.
//
// # What is refused
//
// Every key of config.json that changes what the model computes is used, or is an error that names
// it. So is any key that this package does not know, and any size that is not that of the tensors.
// Tensors that are to be the same, such as a tied head, and are not, are errors, too. Keys that change nothing, or only training, are
// passed over: Model.Ignored lists those that say something, such as the rates of dropout, which the
// model does not get.
package hf
