"""Stage 2 on one GPU: tokens/s, peak memory and model-FLOP utilisation of ours beside Hugging Face's `Trainer`, at BERT-base and RoBERTa-base size

    python benchmarks/gpu.py                 # at most ten minutes on one GPU
    python benchmarks/gpu.py --tiny          # on a CPU, in seconds, at a toy size: does it run from end to end? Its figures mean nothing

Random weights, the texts of `intents` four times, a tokenizer trained on them, no network. Both get the same weights, rows of 512 tokens, masks and order; see `LMTask` in timing.py. bfloat16 is fastai's `to_bf16`
on our side and `bf16=True` on theirs. Utilisation counts the floating point operations that each side needs for its forward and backward pass (ours has far fewer in the LM head), by the peak of the
device for dense matrices in half precision. Optional rows are switched on at `extras`.
"""
import logging, os
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0') # the `Trainer` would split batches over all it sees
from functools import partial
from timing import *
from common import quiet, save

peak_tflops = { # half precision, dense, as the vendor gives it; the first name that the device's contains
    'H200':989, 'H100 PCIe':756, 'H100':989, 'B200':2250, 'A100':312, 'A40':150, 'A10G':70, 'A10':125, 'L40S':362, 'L40':181, 'L4':121, 'V100':112, 'T4':65, 'RTX 4090':165, 'RTX 3090':71}

def extras():
    "Rows beside the plain ones: name, precision, our callbacks, arguments of the `Trainer`"
    rows = [('fp16', 'fp16', lambda: [], {})]
    return rows

def configs(pad, tiny):
    from transformers import BertConfig, RobertaConfig
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64) if tiny else {}
    return {'BERT-base, vocabulary 30,522':BertConfig(pad_token_id=pad, **small), 'RoBERTa-base, vocabulary 50,265':RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, pad_token_id=pad, **small)}

def data(tok, args):
    import pandas as pd
    from fastformers.text.corpora import intents
    from fastformers.data.block import lm_dls
    texts = intents(3000) if args.tiny else pd.concat([intents()]*4)
    return lm_dls(texts, tok, seq_len=args.seq_len, bs=args.bs, packing='full-sentences', device=args.device)

def with_memory(run, device):
    "`run()`, and the highest number of MiB that tensors held meanwhile"
    import gc, torch
    gc.collect()
    if device=='cpu': return {**run(), 'peak_mib':0.}
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    return {**run(), 'peak_mib':torch.cuda.max_memory_allocated()/2**20}

def compare(name, task, precision, cbs, trainer, args):
    "Both in turn; a line of figures"
    contenders = dict(ours=lambda: task.ours(precision, cbs()), trainer=lambda: task.trainer(precision, **trainer))
    if not args.tiny: # compilers, tuned kernels and the memory allocator settle before anything is timed
        for f in contenders.values(): f()
    runs = in_turn({k:partial(with_memory, f, args.device) for k,f in contenders.items()}, args.repeats, lambda o: f"{says_tokens(o)}  {o['peak_mib']:8.0f} MiB")
    flops = task.count(rows=2)
    def utilised(k, side): return spread([100*o['tokens/s']*flops[side]['flops_a_token']/(args.peak_tflops*1e12) for o in runs[k]])
    mem = {k:spread([o['peak_mib'] for o in v]) for k,v in runs.items()}
    return {'row':name, 'tokens/s':tokens_of(runs), 'peak MiB':mem, 'flops':flops, 'first and last loss':{k:(v[0]['losses'][0],v[0]['losses'][-1]) for k,v in runs.items()},
            'utilisation, %':dict(ours=utilised('ours','ours'), trainer=utilised('trainer','dense')), 'table':targets(
                (f'{name}: ours, tokens/s', spread([o['tokens/s'] for o in runs['ours']]), '', None), ('   times the Trainer', times(runs, 'ours', 'trainer')[0], '', None),
                ('   counted FLOPs of the dense network, times ours', flops['dense']['flops_a_token']/flops['ours']['flops_a_token'], '', None),
                ('   peak memory, MiB', mem['ours'], '', None), ('   peak memory of the Trainer, MiB', mem['trainer'], '', None),
                ('   model-FLOP utilisation, %', utilised('ours','ours'), '', None), ('   that of the Trainer, %', utilised('trainer','dense'), '', None))}

def main():
    p = parser(__doc__)
    p.add_argument('--bs', type=int, default=32)
    p.add_argument('--seq-len', type=int, default=512)
    p.add_argument('--steps', type=int, default=25, help='of each run; the first five are not timed')
    p.add_argument('--peak-tflops', type=float, default=None, help='of the device, where its name is not in the table')
    p.add_argument('--tiny', action='store_true', help='a toy size on the CPU')
    args = p.parse_args()
    import torch
    torch.set_num_threads(args.threads)
    if args.tiny: args.bs,args.seq_len,args.steps,args.repeats,args.device,device,args.peak_tflops = 4,32,3,1,'cpu','CPU, toy size: UNMEASURED',args.peak_tflops or 1.
    elif not torch.cuda.is_available(): raise SystemExit('no GPU here; --tiny runs the script on a CPU')
    else: args.device,device = 'cuda',torch.cuda.get_device_name()
    if args.peak_tflops is None: args.peak_tflops = next((v for k,v in peak_tflops.items() if k in device), None)
    if args.peak_tflops is None: raise SystemExit(f'the peak of {device!r} is not in the table; give --peak-tflops')
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    from fastformers.text.corpora import intents
    from fastformers.text.train_tokenizer import train_tokenizer
    tok = train_tokenizer(intents().text, kind='wordpiece', vocab_sz=1000 if args.tiny else 8000)
    fig = {'device':device, 'peak TFLOPS':args.peak_tflops, 'measured':not args.tiny, 'rows':[]}
    for name,config in configs(tok.pad_token_id, args.tiny).items():
        task = LMTask(config, data(tok, args), args.steps, lr=1e-4, warm=1 if args.tiny else 5)
        rows = [('bf16', 'bf16', lambda: [], {})] + (extras() if name.startswith('BERT') else [])
        for row in rows:
            if args.device=='cpu' and row[1]=='fp16': continue
            fig['rows'].append(compare(f'{name}, {row[0]}', task, *row[1:], args))
    if not args.tiny: save('gpu', args, vars(args), fig)

if __name__=='__main__': main()
