"""TensorFlow's parameter servers: `tf.distribute.ParameterServerStrategy` on leased slots."""
