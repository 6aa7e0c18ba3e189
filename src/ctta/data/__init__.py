"""Datasets and downloads: CIFAR-10/100, their corrupted versions, ImageNet-C, folders, the embedded sample."""

from ctta.data.cache import Watcher, cache_folder
from ctta.data.catalogue import ENTRIES, Entry, find
from ctta.data.check import Check, check
from ctta.data.cifar import cifar10, cifar100
from ctta.data.cifar_c import CifarC, cifar10_c, cifar100_c
from ctta.data.dataset import Arrays, Dataset, MissingError, to_batch
from ctta.data.domains import Domains, domains
from ctta.data.folders import ImageFolder, image_folder, imagenet_c, read_ids, tiny_imagenet_c
from ctta.data.get import get
from ctta.data.make import MadeFile, Plan, make
from ctta.data.sample import embedded_dataset, embedded_sample, read_sample

__all__ = [
    "ENTRIES", "Arrays", "Check", "CifarC", "Dataset", "Domains", "Entry", "ImageFolder", "MadeFile",
    "MissingError", "Plan", "Watcher", "cache_folder", "check", "cifar10", "cifar10_c", "cifar100", "cifar100_c",
    "domains", "embedded_dataset", "embedded_sample", "find", "get", "image_folder", "imagenet_c", "make",
    "read_ids", "read_sample", "tiny_imagenet_c", "to_batch",
]  # fmt: skip
