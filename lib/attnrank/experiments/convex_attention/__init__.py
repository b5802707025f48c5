"""x"""
EXPERIMENTS={}
