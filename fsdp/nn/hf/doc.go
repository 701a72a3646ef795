// Package hf reads and writes models in the directories of Hugging Face's transformers:
//
//	config.json                    what the model is
//	model.safetensors              its weights, or
//	model.safetensors.index.json   which of several files has which of them
//
// Open makes the model. After fsdp.Wrap each rank reads its own shard of the weights, and no more.
// Save writes a directory that transformers loads strictly:
//
//	m, err := hf.Open(dir)
//	s, err := fsdp.Wrap(m.Model, cfg)
//	err = m.Load(ctx, s)
//	…
//	err = m.Save(ctx, s, newDir, nil)
//
// To save a model that was made here, use [New] in place of Open.
//
// # Supported models
//
//	model_type                      model
//	gpt2                            nn.GPT
//	llama, mistral, qwen2, qwen3,
//	gemma3_text (Gemma 3)           nn.Llama
//	bert, roberta, xlm-roberta,
//	distilbert                      nn.BERT: for masked tokens, for classes of sequences or
//	                                tokens, for vectors of sequences, or without a head
//	modernbert                      nn.ModernBERT, for the same tasks
//	vit, for classes of images      nn.ViT
//	t5, of all versions             nn.T5
//
// Gemma 3 with images, of model_type gemma3, is refused.
//
// Weights of float32, float64, bfloat16 and float16 become the type of the computation. Save writes
// them in the type that they had, with the files of the tokenizer and of generation. Joined
// parameters, such as queries, keys and values, are joined from the tensors of the file. Matrices
// that the file has transposed are transposed. A tied head has no tensor of its own.
//
// # New heads
//
// OpenWithHead gives an nn.BERT or nn.ModernBERT a new head, which Wrap draws by Config.Seed. Open
// refuses a directory whose tensors do not match its class: no head is ever drawn silently.
//
//	m, err := hf.OpenWithHead(dir, hf.Head{Task: nn.ClassifySequences, Labels: []string{"spam", "ham"}})
//
// Model.Labels has the labels of the directory, and Save writes them. In nn.ClassifySequences the
// targets follow problem_type: one class for each sequence, several, or numbers. The mean of the
// losses is over sequences, over sequences and classes, or over numbers. A sequence begins with a
// token: its padding is at its end.
//
// # Sentence embeddings
//
// A directory of sentence-transformers has modules.json, in which the modules Pooling and Normalize
// follow the encoder. Open reads the layouts of all its versions. The encoder then has the task
// nn.EmbedSequences: it makes a vector of each sequence, and [nn.InfoNCE] trains it. Save writes a
// directory for sentence-transformers, without the pooler, which no vector depends on.
// Model.MaxTokens has the number of tokens of the longest text. In old layouts the tokenizer is in
// a directory below, such as 0_Transformer. Other modules, such as Dense, are errors. OpenWithHead
// makes such an encoder of any other directory:
//
//	m, err := hf.OpenWithHead(dir, hf.Head{Task: nn.EmbedSequences, MeanPool: true, Normalize: true})
//
// # New tokens
//
// If Vocab of the model is raised between Open and Wrap, the directory lacks rows of the embedding
// and of the head. Model.NewRows says how Load makes them. Without it they are an error.
//
//	m.Model.(*nn.Llama).Vocab += 2
//	m.NewRows = hf.MeanRows
//
// # Adapters
//
// A directory of PEFT has an adapter (LoRA) of a model in another directory. OpenAdapter reads one,
// and SaveAdapter writes the trained adapters of a model for PEFT and for programs that serve
// models:
//
//	m, err := hf.Open(dir)
//	err = m.OpenAdapter(adapterDir) // or set the LoRA of m.Model, for a new one
//	s, err := fsdp.Wrap(m.Model, fsdp.Config{Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
//	err = m.Load(ctx, s)
//	…
//	err = m.SaveAdapter(ctx, s, newAdapterDir)
//
// Merge adds the adapters to the weights, for Save.
//
// # Refused settings
//
// Every key of config.json that changes the model's computation is used, or is an error that names
// it. So is any size that differs from the tensors. Tensors that must be the same, such as a tied
// head, and are not, are errors, too. Keys that change nothing, or only training, are skipped.
// Model.Ignored lists the keys that have an effect on training, such as the rates of dropout, which
// the model does not get.
//
// An unknown key is an error, unless it is null or false, and so is a tensor that the model lacks.
// Further arguments of Open are patterns of keys and tensors that it skips.
package hf
