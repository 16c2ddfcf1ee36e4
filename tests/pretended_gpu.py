"""A GPU for machines without one: its tensors lie in the memory of the CPU, and their storages are on a list

`with pretended_gpu() as gpu:` makes torch say that there is a GPU. Two modes of torch keep up the pretence. One answers what is asked of a tensor (`device`, `to`, `numpy`, a
function with `device=`). The other sees each operation below autograd: as on a GPU, its tensors have to be on one device, and its results are there too. Apple's GPUs lack
float64, so this one refuses it. What it cannot show: half precision as a GPU rounds, memory, speed, several GPUs."""
import torch
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch
from fastai.callback import fp16
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
cpu,cuda = torch.device('cpu'),torch.device('cuda', 0)
storages = {} # address -> weak reference, which keeps the address from being used again

class DeviceError(RuntimeError): "An operation that fails on a GPU, or on one of Apple"

def is_tensor(o): return isinstance(o, torch.Tensor)
def tensors_in(o):
    "Return the tensors in nested tuples, lists and dictionaries, faster than pytree"
    if is_tensor(o): return [o]
    if isinstance(o, dict): o = o.values()
    elif not isinstance(o, (tuple, list)): return []
    return [t for x in o if x is not None for t in ([x] if is_tensor(x) else tensors_in(x))]
def address(t):
    with torch._C.DisableTorchFunction(): return t.untyped_storage()._cdata
def on_gpu(t): return address(t) in storages
def device_of(t):
    if on_gpu(t): return cuda
    with torch._C.DisableTorchFunction(): return t.device # the CPU, or meta

def to_gpu(o):
    "Declare the memory of each tensor in `o` to be on the GPU"
    with torch._C.DisableTorchFunction():
        for t in tensors_in(o):
            s = t.untyped_storage()
            if s._cdata not in storages: storages[s._cdata] = StorageWeakRef(s)
    if len(storages)>20_000:
        for k in [k for k,o in storages.items() if o.expired()]: del storages[k]
    return o

# operations that read or write two devices, or take an index from the CPU
between = {aten.copy_.default, aten._to_copy.default, aten.copy.default, aten.set_.source_Tensor, aten._pack_padded_sequence.default}
lengths = {aten._pack_padded_sequence.default} # whose further results are on the CPU
indexed = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default, aten._unsafe_index.Tensor}

class Operations(TorchDispatchMode):
    "Check the devices of each operation, and put its results where its tensors are"
    there = False # was the last operation on the GPU?
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            tensors = tensors_in(args)+tensors_in(kwargs)
            there = [on_gpu(o) for o in tensors]
            if tensors: self.there = any(there)
            elif self.there and torch._C._current_graph_task_id()>=0: return to_gpu(func(*args, **kwargs)) # zeros of a backward pass
            if not any(there): return func(*args, **kwargs)
            if func not in between: self.check(func, args, tensors, there)
            res = func(*args, **kwargs)
            if func is aten.copy_.default: return res
            if func in lengths: return to_gpu(res[0]),*res[1:]
            if any(o.dtype==torch.float64 for o in tensors_in(res)): raise DeviceError(f'float64 from {func}')
            return to_gpu(res)
    def check(self, func, args, tensors, there):
        "Raise an error if not all tensors are on the GPU, apart from numbers and the indices of one that is, or if it lacks their format"
        if func in indexed:
            me,at,*more = args
            tensors = [me, *(o for o in at if o is not None and on_gpu(o)), *tensors_in(more)]
            there = [*map(on_gpu, tensors)]
        def says(): return f"{func}: {', '.join(f'{device_of(o).type}{tuple(o.shape)}' for o in tensors)}"
        if not all(h or o.ndim==0 and 'fused_adam' not in str(func) for o,h in zip(tensors, there)): raise DeviceError(says())
        if any(h and o.dtype==torch.float64 for o,h in zip(tensors, there)): raise DeviceError(f'float64 in {says()}')

def copied(t, device):
    "Copy `t` to `device`, unless it is there"
    if device.type=='meta' or on_gpu(t)==(device.type=='cuda'): return t
    if device.type=='cuda' and t.dtype==torch.float64: raise DeviceError('float64 is copied to the GPU')
    with aside(): res = t.clone() if t.requires_grad else t.detach().clone()
    with torch._C.DisableTorchFunction():
        if type(t) not in (torch.Tensor, torch.nn.Parameter): res = res.as_subclass(type(t))
    vars(res).update(getattr(t, '__dict__', {}))
    return to_gpu(res) if device.type=='cuda' else res

class Answers(TorchFunctionMode):
    "Answer where a tensor is, and move tensors"
    asked = {torch.Tensor.device.__get__:device_of, torch.Tensor.is_cuda.__get__:on_gpu, torch.Tensor.is_cpu.__get__:lambda t: not on_gpu(t)}
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in self.asked: return self.asked[func](args[0])
        name,t = getattr(func, '__name__', ''),args[0] if args and is_tensor(args[0]) else None
        if t is not None:
            if name in ('cpu','cuda'): return copied(t, cpu if name=='cpu' else cuda)
            if name=='to': return self.moved(func, *args, **kwargs)
            if on_gpu(t):
                if name in ('numpy','__array__'): raise DeviceError("can't convert cuda:0 device type tensor to numpy")
                if name=='_pad_packed_sequence': return (res := self.alone(func, *args, **kwargs))[0],res[1].clone()
                if name in ('new_tensor','one_hot','__deepcopy__'): return self.alone(func, *args, **kwargs)
                if kwargs.pop('is_causal', False): # its mask is made within
                    mask = torch.ones(t.shape[-2], args[1].shape[-2], dtype=torch.bool).tril()
                    kwargs['attn_mask'] = to_gpu(mask)
        if kwargs.get('device') is None or not callable(func) or name in ('set_default_device','_parse_to'): return func(*args, **kwargs)
        device = torch.device(kwargs['device'])
        if device.type=='cuda': kwargs['device'] = cpu
        if device.type=='meta': return func(*args, **kwargs)
        if device.type=='cuda' and t is not None and on_gpu(t): return func(*args, **kwargs)
        with aside(): res = func(*args, **kwargs)
        if not is_tensor(res): return res
        if device.type=='cuda' and res.dtype==torch.float64: raise DeviceError(f'float64 from {name}')
        if t is not None and address(res)==address(t): return copied(res, device) # `as_tensor`
        return to_gpu(res) if device.type=='cuda' else res
    def alone(self, func, *args, **kwargs):
        "Run `func`, which makes tensors of its own, below the modes"
        with aside(): return to_gpu(func(*args, **kwargs))
    def moved(self, func, t, *args, **kwargs):
        "Run `Tensor.to`"
        if args and is_tensor(args[0]): args,kwargs = (device_of(args[0]), args[0].dtype),{}
        copy = kwargs.pop('copy', False)
        args = [torch.device('cuda', o) if type(o) is int else o for o in args]
        device,dtype,*_ = torch._C._nn._parse_to(*args, **{k:v for k,v in kwargs.items() if v is not None})
        if device is not None and device.type=='meta': return func(t, device='meta')
        res = copied(t, cpu) if device is not None and device.type=='cpu' else t
        if dtype not in (None, t.dtype): res = func(res, dtype)
        if device is not None: res = copied(res, device)
        return res.clone() if copy and res is t else res

@contextmanager
def aside():
    "Leave both modes: what runs inside is of the CPU"
    with torch.utils._python_dispatch._disable_current_modes(): yield

class OnCPU(torch.autocast):
    "Autocast of the GPU, run by that of the CPU"
    def __init__(self, device_type, dtype=None, *args, **kwargs):
        if device_type=='cuda': device_type,dtype = 'cpu',dtype or torch.bfloat16
        super().__init__(device_type, dtype, *args, **kwargs)

def _nothing(*args, **kwargs): pass
def _load(*args, map_location=None, load=torch.load, **kwargs):
    res = load(*args, map_location='cpu', **kwargs)
    return to_gpu(res) if map_location is not None and torch.device(map_location).type=='cuda' else res
_cuda = dict(is_available=lambda: True, current_device=lambda: 0, device_count=lambda: 1, is_bf16_supported=lambda including_emulation=True: True,
             get_device_capability=lambda *args: (9, 0), get_rng_state_all=list, set_rng_state_all=_nothing, manual_seed_all=_nothing, manual_seed=_nothing, _is_in_bad_fork=lambda: False,
             synchronize=_nothing, empty_cache=_nothing, _lazy_init=_nothing, set_device=_nothing, get_device_name=lambda *args: 'pretended',
             get_device_properties=lambda *args: SimpleNamespace(total_memory=80<<30, uuid='pretended'), max_memory_allocated=lambda *args: 0,
             memory_allocated=lambda *args: 0, mem_get_info=lambda *args: (80<<30, 80<<30), reset_peak_memory_stats=_nothing)

@contextmanager
def pretended_gpu():
    "Pretend that there is a GPU"
    with ExitStack() as stack:
        for k,v in _cuda.items(): stack.enter_context(patch.object(torch.cuda, k, v))
        for o in (torch, torch.amp, torch.amp.autocast_mode, fp16): stack.enter_context(patch.object(o, 'autocast', OnCPU))
        stack.enter_context(patch.object(torch, 'load', _load))
        stack.enter_context(patch.object(torch.backends.cudnn, 'is_acceptable', lambda t: False))
        for k in ('_accelerator_graph_capture_health_check','_cuda_graph_capture_health_check'): # by the version of torch
            if hasattr(torch.optim.Optimizer, k): stack.enter_context(patch.object(torch.optim.Optimizer, k, _nothing))
        stack.enter_context(Operations())
        stack.enter_context(Answers())
        yield
